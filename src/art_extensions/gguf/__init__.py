"""GGUF files as base models: each is dequantized once into a folder that trainer and engines load."""
