"""Checkpoints in buckets, and those that a server sends."""
