"""What a limited process can be ordered to do: run a program, answer calls of a solution, test a solution.

A solution and its tests run in two processes: the tests never share one with what they test. In the tests,
each function of the solution is a stand-in that asks the other process and gives the plain value that came
back. So the solution cannot see, change or end the tests: `sys.exit(0)`, an object that equals everything, a
patched `assert` or a printed "passed" have nothing to act on.
"""

from __future__ import annotations

import builtins
import json
import os
import runpy
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from .wire import DEPTH_OF_ARGUMENTS, LINE_BYTES, Lines, NotPlainError, from_json, to_json

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
        lines.write(json.dumps(_error_reply(error)).encode())
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
        line = json.dumps(_error_reply(error)).encode()
    return line


def _error_reply(error: BaseException) -> dict[str, Any]:
    # An error may have any class; the other side knows it by the first of its classes that is built in.
    builtin = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return {"error": builtin.__name__, "message": f"{type(error).__name__}: {error}"[:500]}


def job_of(order: Order) -> Job:
    """The job that was ordered, with all that it needs of these modules loaded."""
    if order["work"] == "tests":
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


class UnusableTestError(Exception):
    """The test itself is at fault: nothing is known of the solution."""


class _Solution(ModuleType):
    """The module that tests may import; its attributes are stand-ins."""

    def __init__(self, lines: Lines, names: list[str]) -> None:
        super().__init__("solution")
        own = set(dir(builtins))  # a solution that defines `len` must not count for the tests
        known = [name for name in names if name.isidentifier() and name not in own and name[:2] != "__"]
        self.__dict__.update({name: _stand_in(lines, name) for name in known})
        self.__all__ = known


def _stand_in(lines: Lines, name: str) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            given = to_json(args, DEPTH_OF_ARGUMENTS), to_json(kwargs, DEPTH_OF_ARGUMENTS)
            call = {"name": name, "args": given[0], "kwargs": given[1]}
        except NotPlainError as error:
            raise UnusableTestError(f"{name}(...) is called with what cannot be sent: {error}") from error
        lines.write(json.dumps({"call": call}).encode())
        line = lines.read()
        reply = json.loads(line or b'{"error": "RuntimeError", "message": "nobody answers"}')
        if "error" in reply:
            raised = _error_of_reply(reply)
            raised.of_solution = True  # type: ignore[attr-defined]
            raise raised
        return from_json(reply["value"])

    ask.__name__ = ask.__qualname__ = name
    return ask


def _error_of_reply(reply: dict[str, Any]) -> Exception:
    """The error of the other side, by its built-in class. What would end the tests is an ordinary error."""
    kind = getattr(builtins, str(reply["error"]), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(reply["message"])
        except TypeError:  # some want more arguments
            return RuntimeError(reply["message"])
    return RuntimeError(reply["message"])


def run_tests(order: Order) -> int:
    """Run each source, with its `test_*` functions and its `check(candidate)`; say how many passed.

    out  {"call": ...}, answered by a line; at last {"passed": n, "failures": [...]} or {"unusable": reason}
    """
    lines = Lines.of_standard_streams()
    sys.path[:] = [*order["library"]]
    solution = _Solution(lines, order["names"])
    sys.modules["solution"] = solution
    failures: list[str] = []
    passed = 0
    try:
        for number, source in enumerate(order["tests"]):
            for name, test in _tests_of(number, source, solution, order["entry"]):
                failure = _test_failure(test) if callable(test) else test
                passed += failure is None
                failures += [f"{name}: {failure}"] if failure is not None else []
    except UnusableTestError as error:
        lines.write(json.dumps({"unusable": str(error)[:500]}).encode())
        return 0
    lines.write(
        json.dumps({"passed": passed, "failures": failures[:20], "total": passed + len(failures)}).encode()
    )
    return 0


def _tests_of(
    number: int, source: str, solution: _Solution, entry: str | None
) -> list[tuple[str, Callable[[], Any] | str | None]]:
    """Tests by name: a function still to be run, or what came of one: its failure, None."""
    path = write_source(f"tests_{number}.py", source)
    own: dict[str, Any] = {}

    def load() -> None:
        given = {name: getattr(solution, name) for name in solution.__all__}
        found = runpy.run_path(path, init_globals=given, run_name="tests")
        # A function of the solution is no test, whatever it is called.
        own.update({key: value for key, value in found.items() if value is not given.get(key)})

    failure = _test_failure(load)
    name = f"test {number + 1}"
    tests: list[tuple[str, Callable[[], Any] | str | None]]
    tests = [
        (key, value)
        for key, value in own.items()
        if key.startswith("test_") and isinstance(value, FunctionType)
    ]
    check = own.get("check")
    if entry is not None and isinstance(check, FunctionType):
        if not hasattr(solution, entry):
            return [(name, f"the solution does not define {entry!r}")]
        tests.append((f"check({entry})", lambda: check(getattr(solution, entry))))
    if failure is not None:
        return [(name, failure)]
    return tests or [(name, None)]


def _test_failure(test: Callable[[], Any]) -> str | None:
    """Returns None if the test passed; else the failure. Raises UnusableTestError."""
    try:
        test()
    except UnusableTestError:
        raise
    except Exception as error:
        if _is_of_the_tests(error):
            raise UnusableTestError(f"{type(error).__name__}: {error}") from error
        from traceback import extract_tb  # only now: the start of a process is to be cheap

        place = extract_tb(error.__traceback__)
        line = next(
            (frame.line for frame in reversed(place) if frame.filename.endswith(".py") and frame.line), ""
        )
        return f"{type(error).__name__}: {error}{line and f' in {line!r}'}"[:500]
    return None


def _is_of_the_tests(error: Exception) -> bool:
    """Returns whether the tests cannot be read, or need a missing package. A solution that raises such errors
    failed.
    """
    if not isinstance(error, SyntaxError | ImportError) or getattr(error, "of_solution", False):
        return False
    return getattr(error, "name", None) != "solution"
