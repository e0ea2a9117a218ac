"""What a limited process can be ordered to do."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

from .wire import DEPTH_OF_ARGUMENTS, LINE_BYTES, Lines, from_json, to_json

Order = dict[str, Any]
Job = Callable[[Order], int]


def _program(order: Order) -> int:
    """Run the source as a program with the standard streams."""
    path = write_source("program.py", order["source"])
    sys.argv = [path]
    sys.path[:] = [os.getcwd(), *order["library"]]
    runpy.run_path(path, run_name="__main__")
    return 0


def _functions(order: Order) -> int:
    """Load the source as a module, and answer calls of its functions until there are no more.

        in   {"name": "add", "args": [...], "kwargs": {...}}
        out  {"value": ...} or {"error": "ValueError", "message": "..."}; first {"ready": [names]} or an error

    Whoever asks compares the values: what is expected never comes here.
    """
    lines = Lines.of_standard_streams()
    sys.path[:] = [os.getcwd(), *order["library"]]
    try:
        namespace = runpy.run_path(write_source("solution.py", order["source"]), run_name="solution")
    except BaseException as error:  # noqa: BLE001 - code of others: what it raises is its answer
        lines.write(json.dumps(_error(error)).encode())
        return 0
    lines.write(
        json.dumps({"ready": [name for name, value in namespace.items() if callable(value)]}).encode()
    )
    while (line := lines.read()) is not None:
        lines.write(_answer(namespace, json.loads(line)))
    return 0


def _answer(namespace: dict[str, Any], call: dict[str, Any]) -> bytes:
    try:
        if call["name"] not in namespace:
            raise NameError(f"name {call['name']!r} is not defined in the solution")
        args, kwargs = (from_json(call[kind], DEPTH_OF_ARGUMENTS) for kind in ("args", "kwargs"))
        value = namespace[call["name"]](*args, **kwargs)
        line = json.dumps({"value": to_json(value)}).encode()
        if len(line) > LINE_BYTES:
            raise ValueError(f"a value of {len(line)} bytes; at most {LINE_BYTES} can be looked at")
    except BaseException as error:  # noqa: BLE001 - code of others: what it raises is its answer
        line = json.dumps(_error(error)).encode()
    return line


def _error(error: BaseException) -> dict[str, Any]:
    # An error may have any class; the other side knows it by the first of its classes that is built in.
    builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return {"error": builtin.__name__, "message": f"{type(error).__name__}: {error}"[:500]}


def job_of(order: Order) -> Job:
    """The job that was ordered, with all that it needs of these modules loaded."""
    if order["work"] == "tests":
        from .harness import run_tests

        return run_tests
    if order["work"] == "checks":
        from .checks import serve

        return serve
    return {"program": _program, "functions": _functions}[order["work"]]


def write_source(name: str, source: str) -> str:
    """Into the folder of this process; the path."""
    path = os.path.join(os.getcwd(), name)
    with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(source)
    return path
