"""`art doctor`: whether this installation can train, and the memory that a model needs."""
