"""Trajectories on disk: Parquet files that lose nothing, and the older JSON lines."""
