"""The LLM call: a key under a project under an organisation, `rpm` and `tpm`, estimated and then settled."""
