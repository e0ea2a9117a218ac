"""Code that is run: against tests that it never sees, or as a program with input and output."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from art.errors import VerifierError
from art.rewards.reward import Score
from art_extensions.sandbox.check_pool import IsolationGuard
from art_extensions.sandbox.limited_process import (
    LimitedProcess,
    ProcessEnding,
    module_folders,
    process_count,
)
from art_extensions.sandbox.limits import IsolationLevel, Limits
from art_extensions.sandbox.verifier import Answer, Verifier, last_answer

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
LIMITS = Limits()


def code_of(answer: str) -> str:
    """The last block between ``` marks; without any, all of the answer."""
    blocks = FENCED.findall(answer)
    return str(blocks[-1]) if blocks else answer


class _CodeVerifier(Verifier):
    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str,
        answer: Answer = last_answer,
        limits: Limits = LIMITS,
        partial: bool = False,
        packages: bool = False,
        at_once: int | None = None,
        isolation: IsolationLevel = "best",
    ) -> None:
        """limits: of each process. partial: the share that passed, instead of 1 for all and else 0. packages:
        the code may import what is installed here. at_once: how many answers are run side by side (the
        machine's cores).
        """
        super().__init__(expected, key=key, name=name, answer=answer)
        self._limits, self._partial, self._packages = limits, partial, packages
        self._guard = IsolationGuard(name, isolation)
        self._threads = ThreadPoolExecutor(process_count(at_once), thread_name_prefix="art-code")

    async def verify(self, answer: str, expected: Any) -> Score:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, code_of(answer), expected)

    def _run(self, source: str, expected: Any) -> Score:
        raise NotImplementedError

    def _child(self, work: str, *, wall_s: float | None = None, **order: Any) -> LimitedProcess:
        places = module_folders(packages=self._packages)
        child = LimitedProcess(work, self._limits, wall_s=wall_s or self._limits.wall_s, **places, **order)
        try:
            self._guard.check(child.walls)
        except VerifierError:
            child.close()
            raise
        return child

    def _score(self, passed: int, total: int, why: str) -> Score:
        value = passed / total if self._partial else float(passed == total)
        said = f"{passed} of {total} passed" + (f"; {why}" if why else "")
        return Score(value=value, explanation=said[:1000], metrics={f"{self.name}/passed": passed / total})


class CodeTests(_CodeVerifier):
    """Python code, tested. `expected` is the tests: one source or a list of them, of `assert`s, `test_*`
    functions, or a `check(candidate)` with `entry`.

    Tests know the functions of the solution by name (`from solution import add` works, too). They run in a
    process of their own, and each call is sent to the one that runs the solution: arguments and results are
    plain values (numbers, texts, lists, tuples, sets, dicts, bytes). So a solution cannot see what is
    expected, and nothing it prints, patches or exits with makes a test pass. What it does not do: functions
    that change their arguments, take functions, or give objects of their own; they fail.
    """

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str = "code",
        entry: str | None = None,
        **settings: Any,
    ) -> None:
        """entry: the function that `check(candidate)` is given. settings: answer, limits, partial, packages,
        at_once, isolation.
        """
        super().__init__(expected, key=key, name=name, **settings)
        self._entry = entry

    def _run(self, source: str, expected: Any) -> Score:
        tests = [expected] if isinstance(expected, str) else expected
        if not tests or not isinstance(tests, Sequence) or not all(isinstance(each, str) for each in tests):
            raise VerifierError(f"tests {expected!r} are neither a source nor a list of sources")
        with self._child("functions", source=source) as solution:
            started = _read_line(solution.ask(b""))
            if "ready" not in started:
                return self._score(0, len(tests), started.get("message") or _how_it_ended(solution))
            # The solution's own word: whatever it is, it must not break the tests.
            said = started["ready"] if isinstance(started["ready"], list) else []
            names = [name for name in said if isinstance(name, str)]
            order = {"tests": tests, "names": names, "entry": self._entry}
            # Its time is the solution's, and its own.
            with self._child("tests", wall_s=2 * self._limits.wall_s, **order) as harness:
                return self._verdict(solution, harness, len(tests))

    def _verdict(self, solution: LimitedProcess, harness: LimitedProcess, total: int) -> Score:
        words = _read_line(harness.ask(b""))
        lost = ""
        while "call" in words:
            reply = None if lost else solution.ask(json.dumps(words["call"]).encode())
            if reply is None and not lost:
                lost = _how_it_ended(solution)
            answered = _read_line(reply) or {
                "error": "RuntimeError",
                "message": lost or "no answer that can be read",
            }
            words = _read_line(harness.ask(json.dumps(answered).encode()))
        if "unusable" in words:
            raise VerifierError(f"the tests cannot be used: {words['unusable']}")
        if "passed" in words:
            return self._score(words["passed"], words["total"], "; ".join(words["failures"][:3]))
        harness.end_input()
        ending = harness.finish()
        if ending.fate in ("deadline", "cpu"):
            return self._score(0, total, f"the tests did not end in time ({ending.fate})")
        said = harness.errors.decode(errors="replace")[-500:]
        raise VerifierError(f"the process of the tests ended with {ending.code}: {said}")


class ProgramCases(_CodeVerifier):
    """A Python program. `expected` is a list of cases, {"input": text, "output": text}; each is a run of its
    own, and passes where it exits with 0 and prints the output. White space at the ends of lines and of the
    output does not count.
    """

    def __init__(
        self, expected: Any = None, *, key: str | None = None, name: str = "program", **settings: Any
    ) -> None:
        """settings: answer, limits, partial, packages, at_once, isolation."""
        super().__init__(expected, key=key, name=name, **settings)

    def _run(self, source: str, expected: Any) -> Score:
        try:
            cases = json.loads(expected) if isinstance(expected, str) else expected
        except ValueError as error:
            raise VerifierError(f"cases {expected!r} are no JSON: {error}") from error
        if not (isinstance(cases, Sequence) and cases) or not all(
            isinstance(case, Mapping) and {*case} == {"input", "output"} for case in cases
        ):
            raise VerifierError(f'cases {expected!r} are no list of {{"input": text, "output": text}}')
        passed, why = 0, ""
        for number, case in enumerate(cases):
            failure = self._failure(source, case)
            passed += failure is None
            why = why or (f"case {number + 1}: {failure}" if failure is not None else "")
            if failure is not None and not self._partial:
                break
        return self._score(passed, len(cases), why)

    def _failure(self, source: str, case: Mapping[str, str]) -> str | None:
        with self._child("program", source=source) as child:
            said = child.talk(str(case["input"]).encode()).decode(errors="replace")
            ending = child.finish()
            if ending.fate != "ended" or ending.code != 0:
                return _reason(ending, child.errors)
        wanted = _lines(str(case["output"]))
        return None if _lines(said) == wanted else f"printed {said[:200]!r}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _read_line(line: bytes | None) -> dict[str, Any]:
    """A line as an object; empty for anything else. The other side may have written what it liked."""
    try:
        words = json.loads(line or b"{}")
    except (ValueError, RecursionError):
        return {}
    return words if isinstance(words, dict) else {}


def _how_it_ended(child: LimitedProcess) -> str:
    child.end_input()
    return _reason(child.finish(), child.errors)


def _reason(ending: ProcessEnding, errors: bytes) -> str:
    said = errors.decode(errors="replace").strip().splitlines()
    fates = {
        "deadline": "it did not end in time",
        "cpu": "it used up its CPU time",
        "output": "it wrote too much",
    }
    return fates.get(ending.fate) or f"it exited with {ending.code}{f': {said[-1][:300]}' if said else ''}"
