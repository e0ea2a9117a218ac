"""Checks of texts by libraries, in a process that has them loaded; each check runs in a fork of its own.

A pattern or an expression that never ends, or eats all memory, ends its fork. Whatever it did to that process
is gone with it: the next check begins from the same loaded state.

    in   {"check": "math", "answer": "...", "expected": ..., "options": {...}}
    out  {"value": 1.0, "why": "..."}, {"unusable": reason} or {"fate": why it did not end: "deadline", "cpu",
         "memory", "died"}
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from . import kernel
from .kernel import used_up_cpu
from .wire import LINE_BYTES, Lines

PLAIN_NUMBER: Final = re.compile(r"\s*-?[\d,. ]+%?\s*")
Options = dict[str, Any]


class UnusableError(Exception):
    """The expected result cannot be used, so the answer cannot be checked."""


def _regex(answer: str, expected: str, options: Options) -> tuple[float, str]:
    try:
        pattern = re.compile(expected, options["flags"])
    except re.error as error:
        raise UnusableError(f"pattern {expected!r}: {error}") from error
    found = pattern.fullmatch(answer) if options["whole"] else pattern.search(answer)
    return (0.0, f"no match of {expected!r}") if found is None else (1.0, f"matched {found.group()[:100]!r}")


def _json_schema(answer: str, expected: Any, options: Options) -> tuple[float, str]:
    from jsonschema import SchemaError, ValidationError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    kind = validator_for(expected)
    try:
        kind.check_schema(expected)
    except SchemaError as error:
        raise UnusableError(f"schema: {error.message}") from error
    try:
        value = json.loads(answer, parse_constant=_no_constant)
        kind(expected, format_checker=kind.FORMAT_CHECKER).validate(value)
    except (json.JSONDecodeError, RecursionError) as error:
        return 0.0, f"no JSON: {error}"
    except ValidationError as error:
        return 0.0, f"{error.json_path}: {error.message}"[:500]
    except Unresolvable as error:
        raise UnusableError(f"schema: {error}; nothing is fetched") from error
    return 1.0, "valid"


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is no JSON", name, 0)


def _math(answer: str, expected: str, options: Options) -> tuple[float, str]:
    from math_verify import parse, verify

    # Without marks, LaTeX is no LaTeX to the library: of `2\\sqrt{2}` it would read the first 2.
    marked = PLAIN_NUMBER.fullmatch(expected) or any(
        mark in expected for mark in ("$", "\\(", "\\[", "\\boxed")
    )
    forms = [expected] if marked else [f"${expected}$", expected]
    readings = (parse(form, parsing_timeout=None, fallback_mode="no_fallback") for form in forms)
    truth = next(filter(None, readings), None)
    if not truth:
        raise UnusableError(f"expected {expected!r} is no mathematical expression")
    given = parse(answer, parsing_timeout=None)
    if not given:
        return 0.0, "no mathematical expression in the answer"
    options = {name: value for name, value in options.items() if value is not None}
    equal = verify(truth, given, timeout_seconds=None, **options)
    return float(equal), f"{given[-1]} {'equals' if equal else 'is not'} {truth[-1]}"[:500]


CHECKS: Final[dict[str, Callable[[str, Any, Options], tuple[float, str]]]] = {
    "regex": _regex,
    "json_schema": _json_schema,
    "math": _math,
}
WARM_UP: Final[dict[str, tuple[str, Any, Options]]] = {
    "regex": ("a", "a", {"flags": 0, "whole": True}),
    "json_schema": ("1", {"type": "integer", "format": "date"}, {}),
    "math": ("$\\frac{1}{2}$", "0.5", {}),
}


def serve(order: dict[str, Any]) -> int:
    """Serves requests until the input ends."""
    lines = Lines.of_standard_streams()
    sys.path[:] = order["library"]
    check = CHECKS[order["check"]]
    check(*WARM_UP[order["check"]])
    gc.collect()
    gc.freeze()  # the collector of a fork would touch, and so copy, all that was loaded
    if sys.platform == "linux":
        kernel.set_process(kernel.PR_SET_DUMPABLE, 0)  # a check cannot look into this process
    lines.write(b'{"ready": true}')
    while (line := lines.read()) is not None:
        lines.write(json.dumps(_in_fork(check, json.loads(line), order)).encode())
    return 0


def _in_fork(check: Callable[..., tuple[float, str]], asked: dict[str, Any], order: dict[str, Any]) -> Any:
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(check, asked, order["cpu_s"], sink)
    os.close(sink)
    text = _read_within(source, order["check_s"])
    os.close(source)
    if text is None:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if text is None:
        return {"fate": "deadline"}
    try:
        return json.loads(text)
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        return {"fate": "cpu" if used_up_cpu(code, usage, order["cpu_s"]) else "died", "code": code}


def _read_within(source: int, seconds: float) -> bytes | None:
    """All that was written; None when it took too long."""
    import time

    deadline, text = time.monotonic() + seconds, b""
    while True:
        ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(source, 1 << 16)
        if not part or len(text) > LINE_BYTES:
            return text
        text += part


def _answer(check: Callable[..., tuple[float, str]], asked: dict[str, Any], cpu_s: int, sink: int) -> None:
    """Answers in the fork; it never returns."""
    import resource

    try:
        # First SIGXCPU, which tells a spent budget from other ends; a second later SIGKILL.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        value, why = check(asked["answer"], asked["expected"], asked["options"])
        reply: dict[str, Any] = {"value": value, "why": why}
    except UnusableError as error:
        reply = {"unusable": str(error)[:500]}
    except MemoryError:
        reply = {"fate": "memory"}
    except BaseException as error:  # noqa: BLE001 - whatever a library raises must be told before the end
        reply = {"fate": "died", "why": f"{type(error).__name__}: {error}"[:500]}
    finally:
        os.write(sink, json.dumps(reply).encode())
        os._exit(0)
