"""An environment, a tracker, a command and a loss that ART finds by the entry points in `pyproject.toml`."""
