"""The documentation is true: what it shows is run."""
