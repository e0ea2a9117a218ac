"""Environments of other libraries by name: one library, one file. None imports another."""
