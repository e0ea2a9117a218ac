"""Sampling: one face for the builtin engine, vLLM and a set of replicas; constraints on completions."""
