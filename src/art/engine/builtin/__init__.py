"""The builtin engine: continuous batching with torch, over the model classes of transformers."""
