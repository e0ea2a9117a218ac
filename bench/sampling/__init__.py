"""Tokens per second of the engines."""
