"""Which models there are, which names are served, by which engine and adapter."""
