"""Giving a trained adapter to whoever serves it for good. One file a provider, one row in the registry."""
