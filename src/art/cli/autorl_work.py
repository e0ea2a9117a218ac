"""What `art autorl` does, and how it is told."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from art import environment
from art.errors import ARTError, ConfigurationError

INTERRUPTED = 130
JUDGING = ("judge", "judge_params", "referee")
"""Who has nothing to do with preparing a run."""


def autorl_run(options: dict[str, Any]) -> int:
    """Train and report. options: those of the command, by name. Returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        asyncio.run(_work(console, options))
    except (ARTError, OSError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"{type(error).__name__}: {error}", markup=False
        )
        return 1
    except KeyboardInterrupt:
        again = shlex.join(["art", *sys.argv[1:]])
        console.print(f"\nStopped. Nothing committed is lost; go on with:\n  {again}", markup=False)
        return INTERRUPTED
    return 0


async def _work(console: Console, options: dict[str, Any]) -> None:
    from art.autorl import prepare, train

    chosen = dict(options)
    task, json_file, only = _task(chosen.pop("task")), chosen.pop("json"), chosen.pop("prepare_only")
    keywords = _keywords(chosen) | {"tell": lambda text: console.print(text, markup=False)}
    if only:
        folder = await prepare(task, **{name: keywords[name] for name in keywords if name not in JUDGING})
        console.print(f"Prepared in {folder}: edit the files, then run the command again.", markup=False)
        return
    report = await train(task, **keywords)
    from rich.markdown import Markdown

    console.print(Markdown(report.to_markdown()))
    console.print(f"\n{report.folder / 'report.md'}", markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")


def _task(text: str) -> str:
    return Path(text[1:]).read_text() if text.startswith("@") else text


def _keywords(chosen: dict[str, Any]) -> dict[str, Any]:
    """Those of `art.autorl.train`."""
    from art.llm import Budget

    limits = {name: chosen.pop(f"budget_{name}") for name in ("calls", "tokens", "usd")}
    named = {
        "judge_params": _params(chosen.pop("judge_base_url"), environment.JUDGE_API_KEY),
        "generator_params": _params(chosen.pop("generator_base_url"), environment.GENERATOR_API_KEY),
    }
    file, path = chosen.pop("inputs"), chosen.pop("data_dir")
    return {
        **{**chosen, **named, "path": path},
        "budget": Budget(**limits) if any(value is not None for value in limits.values()) else None,
        "inputs": None if file is None else read_inputs(file),
    }


def _params(base_url: str | None, key: str) -> dict[str, Any]:
    """An address of one's own has a key of its own."""
    if base_url is None:
        return {}
    return {"base_url": base_url, "api_key": environment.variable(key)}


def read_inputs(path: Path) -> list[str]:
    """A JSON list of texts, or a text on each line. Raises ConfigurationError."""
    text = path.read_text()
    if path.suffix != ".json":
        return [line for line in text.splitlines() if line.strip()]
    try:
        listed = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--inputs {str(path)!r} is not JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ConfigurationError(f"--inputs {str(path)!r}: a list of texts is needed")
    return listed
