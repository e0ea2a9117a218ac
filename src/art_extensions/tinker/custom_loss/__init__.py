"""Losses that a program sends as a graph of operations: what may be in it, and how it is run."""
