"""The models that ship with the package: tiny, real, quick to teach. One folder each, with its model card.

`art/nano-games` plays tic-tac-toe and yes-no-maybe, `art/nano-tools` is the mail agent, `art/nano-mcp` knows
the weather server of `art.mcp.servers`, `art/nano-words` follows short instructions and is a base for small
tasks of a user's own; `art/nano` is the first. `nano/` in the repository makes them from
nothing.
"""

from __future__ import annotations

from pathlib import Path

from art.errors import ConfigurationError, did_you_mean

PREFIX = "art/"
FOLDERS = {
    "art/nano": "nano_games",
    "art/nano-games": "nano_games",
    "art/nano-tools": "nano_tools",
    "art/nano-mcp": "nano_mcp",
    "art/nano-words": "nano_words",
}
NAMES = tuple(FOLDERS)


def resolve(name: str) -> Path:
    """The folder of the model `name`: config.json, model.safetensors and the tokenizer's files.

    Raises ConfigurationError with the known names.
    """
    if name not in NAMES:
        hint = did_you_mean(name, NAMES)
        raise ConfigurationError(
            f"unknown model {name!r}{hint and f', {hint}'}; ART ships {', '.join(NAMES)}"
        )
    return Path(__file__).parent / FOLDERS[name]
