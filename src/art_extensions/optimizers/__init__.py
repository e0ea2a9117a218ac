"""Optimizers beside AdamW: `optimizer=` of a step."""
