"""Messages to token ids and back, one renderer a model family. Nothing here imports torch."""
