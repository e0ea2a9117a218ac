"""How Sphinx builds the site: `make docs`. The pages are Markdown; the API comes from docstrings."""

from __future__ import annotations

from importlib.metadata import version as version_of

# Imported before Sphinx does, which would do so as a type checker: pydantic's models do not allow that.
import art.client.backends.local_backend
import art.tracking.trajectory_rows  # noqa: F401

project = "ART"
author = "the ART authors"
release = version = version_of("agent-reinforcement-trainer")
html_title = "ART, the Agent Reinforcement Trainer"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
# Docstrings write code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
nitpicky = False

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
