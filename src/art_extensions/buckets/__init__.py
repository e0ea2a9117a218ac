"""Models copied to buckets and back: S3 and whatever else fsspec knows."""
