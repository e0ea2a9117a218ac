"""What verbs share that train for a while with a judge: who is asked, what it may cost, how it ends."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art import environment
from art.errors import ARTError

if TYPE_CHECKING:
    from rich.console import Console

    from art.llm.budget import Budget
    from art.runs.report import RunReport

INTERRUPTED = 130


def reported(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run it, and turn every expected failure into one readable line. Returns the exit code."""
    import asyncio  # the command line starts without it

    try:
        asyncio.run(work())
    except (ARTError, OSError) as error:
        complain(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def resumable(work: Callable[[], Coroutine[Any, Any, None]], console: Console) -> int:
    """`reported`; an interrupted command is told how it goes on."""
    code = reported(work)
    if code == INTERRUPTED:
        again = shlex.join(["art", *sys.argv[1:]])
        console.print(f"\nStopped. Nothing committed is lost; go on with:\n  {again}", markup=False)
    return code


def complain(error: Exception) -> None:
    """One line on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{type(error).__name__}: {error}", markup=False)


def plain_console() -> Console:
    """Text as it is: nothing coloured by guess, no line broken."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def params_of(base_url: str | None, variable: str) -> dict[str, Any]:
    """Options of a judge or generator by name; an address has a key of its own."""
    if base_url is None:
        return {}
    key = environment.variable(variable)
    return {"base_url": base_url, **({"api_key": key} if key else {})}


def budget_of(*, calls: int | None, tokens: int | None, usd: float | None) -> Budget | None:
    """None where nothing is limited."""
    from art.llm.budget import Budget

    if calls is None and tokens is None and usd is None:
        return None
    return Budget(calls=calls, tokens=tokens, usd=usd)


def show_report(console: Console, report: RunReport, json_file: Path | None) -> None:
    """On the terminal, and as JSON where asked for."""
    from rich.markdown import Markdown

    console.print(Markdown(report.to_markdown()))
    console.print(f"\n{report.folder / 'report.md'}", markup=False)
    if json_file is not None:
        write_json(json_file, report.to_dict())


def write_json(path: Path, data: Any) -> None:
    """Readable by people too; folders are made."""
    from art.process.durable import write_whole

    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", durable=False)
