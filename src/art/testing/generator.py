"""A model that writes what it was given to write: scenarios, inputs, a system prompt, a rubric."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from art.testing.prompt import asked_properties, text_of

Source = str | Sequence[Any] | Callable[[Mapping[str, Any], int], Any]
"""A text; a list from which the next entries are taken, starting again at its end; a function of the request
and of the number of entries asked for."""


class ScriptedGenerator:
    """Answers each property of the JSON that it is asked for from the source of that name.

    ScriptedGenerator(scenarios=[{"task": "...", "difficulty": 2}, ...], rubric="Short answers are better.")

    How many entries are wanted is read from the schema (`maxItems`), or else from "exactly N" in the prompt.
    """

    def __init__(self, **sources: Source) -> None:
        self._sources = sources
        self._given = dict.fromkeys(sources, 0)

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat request. Raises ValueError where nothing that is asked for has a source."""
        asked = asked_properties(body)
        text = "\n".join(text_of(message) for message in body["messages"])
        names = [name for name in self._sources if name in asked or (not asked and f'"{name}"' in text)]
        if not names:
            raise ValueError(
                f"this generator has {', '.join(self._sources) or 'nothing'}; "
                f"asked for: {', '.join(asked) or 'text without a schema'}"
            )
        return {name: self._take(name, body, count_asked(asked.get(name) or {}, text)) for name in names}

    def _take(self, name: str, body: Mapping[str, Any], count: int) -> Any:
        source = self._sources[name]
        if isinstance(source, str):
            return source
        if callable(source):
            return source(body, count)
        start = self._given[name]
        self._given[name] = start + count
        return [source[index % len(source)] for index in range(start, start + count)]


def count_asked(schema: Mapping[str, Any], text: str) -> int:
    """How many entries of a list are wanted; 1 where nothing says so."""
    if "maxItems" in schema:
        return int(schema["maxItems"])
    found = re.search(r"\bexactly (\d+)\b", text)
    return int(found[1]) if found else 1
