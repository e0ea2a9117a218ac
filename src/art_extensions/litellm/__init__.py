"""Judges and generators through litellm, by names that begin with `litellm/`."""
