"""The user's side: backends, their connection to a server, captures, and checkpoints in buckets."""
