"""Names that options had in earlier versions: they are taken, and no help shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

OLDER_SPELLINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "quickstart": {
            "--groups": "--groups-per-step",
            "--model": "--base-model",
            "--evaluation-games": "--eval-rollouts",
            "--json": "--json-file",
        },
        "train": {
            "--groups": "--groups-per-step",
            "--model": "--base-model",
            "--path": "--data-dir",
            "--test-attempts": "--eval-group-size",
            "--json": "--json-file",
        },
        "mcp train": {
            "--test-attempts": "--eval-group-size",
            "--difficulty-attempts": "--difficulty-rollouts",
            "--json": "--json-file",
        },
        "autorl": {"--test-attempts": "--eval-group-size", "--json": "--json-file"},
        "audit-model": {"--json": "--json-file"},
        "launch": {"--path": "--data-dir", "--environment": "--at"},
        "chat": {"--system": "--system-prompt"},
        "eval": {"--rollouts": "--eval-rollouts", "--n": "--eval-group-size"},
        "export": {"--to": "--output"},
        "export-logs": {"--to": "--output"},
    }
)
"""The names of options by the words of a command: from the earlier name to the present one."""


def spelled_today(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line with the names that options have now, up to a `--`.

    >>> spelled_today(["train", "--groups=4", "--path", "runs", "--", "--path"])
    ['train', '--groups-per-step=4', '--data-dir', 'runs', '--', '--path']
    """
    end = words.index("--") if "--" in words else len(words)
    found = list(words)
    for command, names in OLDER_SPELLINGS.items():
        if " ".join(words[: command.count(" ") + 1]) == command:
            for place in range(end):
                option, *value = found[place].split("=", 1)
                found[place] = "=".join([names.get(option, option), *value])
    return found
