"""Decoding steps of the builtin engine as CUDA graphs."""
