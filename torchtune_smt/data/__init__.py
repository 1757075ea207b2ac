"""Corpora: reading, preparation, and where the public ones come from."""
