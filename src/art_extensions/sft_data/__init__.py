"""Examples for supervised training: files of JSON and of Parquet, shuffled batches, and chunks."""
