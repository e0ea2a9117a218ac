"""Tinker's API: its training requests as batches of ART, and its replies."""
