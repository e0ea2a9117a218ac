"""What `art autorl` does, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.cli.long_run import budget_of, plain_console, resumable, show_report
from art.errors import ConfigurationError

JUDGING = ("judge", "judge_params", "referee")
"""Who has nothing to do with preparing a run."""


def autorl_run(
    task: str,
    keywords: Mapping[str, Any],
    limits: Mapping[str, Any],
    inputs: Path | None,
    json_file: Path | None,
    *,
    prepare_only: bool,
) -> int:
    """Train and report. keywords: those of `art.autorl.train`; limits: of what generator and judge may cost.
    Returns the exit code.
    """
    console = plain_console()

    async def work() -> None:
        from art.autorl import prepare, train

        chosen = {
            **keywords,
            "budget": budget_of(**limits),
            "inputs": None if inputs is None else read_inputs(inputs),
            "tell": lambda text: console.print(text, markup=False),
        }
        if not prepare_only:
            show_report(console, await train(_task(task), **chosen), json_file)
            return
        folder = await prepare(_task(task), **{name: chosen[name] for name in chosen if name not in JUDGING})
        console.print(f"Prepared in {folder}: edit the files, then run the command again.", markup=False)

    return resumable(work, console)


def _task(text: str) -> str:
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def read_inputs(path: Path) -> list[str]:
    """A JSON list of texts, or a text on each line. Raises ConfigurationError."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return [line for line in text.splitlines() if line.strip()]
    try:
        listed = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--inputs {str(path)!r} is not JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ConfigurationError(f"--inputs {str(path)!r}: a list of texts is needed")
    return listed
