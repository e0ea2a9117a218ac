"""polars, the library behind Parquet files and tables: 180 MB that a client may do without."""

from __future__ import annotations

from importlib.util import find_spec

from art.errors import ConfigurationError

INSTALL = "pip install 'agent-reinforcement-trainer[logs]'"


def has_polars() -> bool:
    """Whether it is installed. It is not loaded for the answer."""
    return find_spec("polars") is not None


def require_polars(what: str) -> None:
    """Raises: ConfigurationError when it is not installed; `what` needs it, in the plural."""
    if not has_polars():
        raise ConfigurationError(f"{what} need polars, which is not installed: `{INSTALL}`")
