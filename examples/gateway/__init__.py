"""A gateway to language models, limited by requests and by tokens for a key, its project and its organisation."""
