"""Whose key a request carries, and what it may see."""
