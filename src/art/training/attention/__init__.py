"""Attention over a token tree, behind transformers' `AttentionInterface`: no model code is changed."""
