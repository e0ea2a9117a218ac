"""Rollouts of programs that are not wrapped: an address and a key each, and what was said through them."""
