"""A limits file: what it may say, how it differs from what is stored, and what is stored as a file. No I/O."""
