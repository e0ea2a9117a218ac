"""A program that merges an adapter into its base, in a process of its own."""
