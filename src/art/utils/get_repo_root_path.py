"""The folder of the repository: the import path that users know."""

from __future__ import annotations

from art.folders import get_repo_root_path

__all__ = ["get_repo_root_path"]
