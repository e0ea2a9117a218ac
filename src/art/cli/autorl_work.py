"""What `art autorl` does, and how it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art import environment
from art.cli.long_run import budget_of, params_of, plain_console, resumable, show_report
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

JUDGING = ("judge", "judge_params", "referee")
"""Who has nothing to do with preparing a run."""


def autorl_run(options: dict[str, Any]) -> int:
    """Train and report. options: those of the command, by name. Returns the exit code."""
    console = plain_console()
    return resumable(lambda: _work(console, options), console)


async def _work(console: Console, options: dict[str, Any]) -> None:
    from art.autorl import prepare, train

    chosen = dict(options)
    task, json_file, only = _task(chosen.pop("task")), chosen.pop("json"), chosen.pop("prepare_only")
    keywords = _keywords(chosen) | {"tell": lambda text: console.print(text, markup=False)}
    if only:
        folder = await prepare(task, **{name: keywords[name] for name in keywords if name not in JUDGING})
        console.print(f"Prepared in {folder}: edit the files, then run the command again.", markup=False)
        return
    show_report(console, await train(task, **keywords), json_file)


def _task(text: str) -> str:
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def _keywords(chosen: dict[str, Any]) -> dict[str, Any]:
    """Those of `art.autorl.train`."""
    limits = {name: chosen.pop(f"budget_{name}") for name in ("calls", "tokens", "usd")}
    named = {
        "judge_params": params_of(chosen.pop("judge_base_url"), environment.JUDGE_API_KEY),
        "generator_params": params_of(chosen.pop("generator_base_url"), environment.GENERATOR_API_KEY),
    }
    file, path = chosen.pop("inputs"), chosen.pop("data_dir")
    return {
        **{**chosen, **named, "path": path},
        "budget": budget_of(**limits),
        "inputs": None if file is None else read_inputs(file),
    }


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
