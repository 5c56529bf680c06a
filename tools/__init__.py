"""What a release is checked with."""
