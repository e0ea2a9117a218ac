"""Several agents with several policies in one environment: each role has a model, and each model learns."""
