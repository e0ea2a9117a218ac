"""The tags of a run, for the trackers that have tags: `art.Model(..., config={"tags": ["longer"]})`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.tracking.run_facts import FACTS

MOST_TAGS, LONGEST_TAG = 20, 64


def run_tags(config: Mapping[str, Any]) -> list[str]:
    """Returns the tags that the config of a tracker's run has, each once; what is no text is left out."""
    said = (dict(config.get(FACTS) or {}).get("config") or {}).get("tags")
    known = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    shown = [tag.strip()[:LONGEST_TAG] for tag in known if isinstance(tag, str) and tag.strip()]
    return list(dict.fromkeys(shown))[:MOST_TAGS]
