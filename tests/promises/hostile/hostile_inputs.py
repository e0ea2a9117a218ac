"""Hostile inputs, made of good ones and of nothing, and what one of them may cost its reader."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import resource
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from pydantic import ValidationError

HERE = Path(__file__).parent
LIST = HERE / "outside.toml"
CORPUS = HERE / "corpus"
GOOD = "good"
"""How the names of inputs begin that a reader accepts; any other one was found to be a bug once."""
CPU_S = 3.0
"""Seconds of processor time that a reader may take for an input, where the list does not say another one."""
MEMORY_MIB = 256
"""MiB by which the process may grow meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """A row of the list: something that comes from outside."""

    what: str
    by: str
    """Who writes it, of the table of docs/guides/security.md."""
    target: str
    readers: tuple[str, ...]
    """Paths of import."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """bytes, depth, count, time -> the path of import of the constant that holds it."""
    unlimited: Mapping[str, str] = field(default_factory=dict)
    """bytes, depth, count, time -> the name of what bounds it, where no constant does."""
    errors: tuple[str, ...] = ("art.errors:ARTError",)
    """Documented errors, by their paths of import."""
    places: tuple[str, ...] = ()
    """Uses of a parser in `src` that read it: `module:function`."""
    cpu_s: float = CPU_S
    memory_mib: int = MEMORY_MIB
    alone: bool = False
    """Whether native code of others may end the process that reads it: it is tried in one of its own."""
    dear: bool = False
    """Whether an input costs so much (a process, a route) that CI tries a few of them alone."""

    @property
    def allowed(self) -> tuple[type[BaseException], ...]:
        """Returns the errors themselves."""
        return tuple(find_object(name) for name in self.errors)


def find_object(path: str) -> Any:
    """Returns what `module:attribute` names; of a field of settings, its default.

    Raises ImportError, AttributeError.
    """
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        fields = getattr(found, "model_fields", {})
        found = fields[name].default if name in fields else getattr(found, name)
    return found


@cache
def the_list() -> dict[str, Any]:
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


@cache
def outside() -> dict[str, Outside]:
    """Returns the rows by the names of their targets."""
    rows = [
        Outside(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
        for row in the_list()["outside"]
    ]
    assert len({row.target for row in rows}) == len(rows)
    return {row.target: row for row in rows}


# The cost of a call.


class OverLimitError(BaseException):
    """A reader took more than it may; no `except Exception` of it hides that."""


@contextlib.contextmanager
def limited(cpu_s: float, memory_mib: int) -> Iterator[None]:
    """Raises OverLimitError where the block takes more processor time, or where the process grows by more."""

    def stop(number: int, frame: object) -> None:
        raise OverLimitError(f"it takes more than {cpu_s:g} s of processor time")

    in_main = threading.current_thread() is threading.main_thread()
    before, began = _peak(reset=True), time.process_time()
    if in_main:
        older = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        if in_main:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, older)
    took, grew = time.process_time() - began, _peak(reset=False) - before
    if took > cpu_s:
        raise OverLimitError(f"it took {took:.1f} s of processor time, and {cpu_s:g} are the most")
    if grew > memory_mib << 20:
        raise OverLimitError(f"it took {grew >> 20} MiB, and {memory_mib} are the most")


def _peak(*, reset: bool) -> int:
    """Returns the most bytes that the process had in memory (since a reset, where the system can)."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if reset:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_bytes(b"5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def try_input(row: Outside, read: Callable[[bytes], object], content: bytes) -> BaseException | None:
    """Returns the documented error that the reader raised; None where it accepted the input.

    Any other error is a bug, and is raised as it is.
    """
    with limited(row.cpu_s, row.memory_mib):
        try:
            read(content)
        except row.allowed as error:
            # Whoever shows an error of pydantic cuts it.
            said = "" if isinstance(error, ValidationError) else str(error)
            assert len(said) < LONGEST_MESSAGE, f"a message of {len(said)} characters"
            return error
    return None


def warm_up(target: str, read: Callable[[bytes], object]) -> None:
    """Reads an input once, so that what is imported and started for it is on nobody's account."""
    content = next(iter(corpus_of(target).values()))
    with contextlib.suppress(Exception):  # the test of the corpus says what is wrong
        read(content)


def trying(examples: int, **more: Any) -> settings:
    """Returns how many inputs are tried, and how. Phase.explain traces each line: no time is true then."""
    return settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        **more,
    )


LONGEST_MESSAGE = 20_000
"""Characters of an error: it repeats an input in part, not all of it."""


# Inputs.

RAW = [
    b"[" * 100_000,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' * 500 + b"1" + b"}" * 500,
    b"9" * 5000,
    b"-1e999",
    b"NaN",
    b"1e-400",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"' + b"x" * 30_000 + b'"',
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x00",
    b"\n\n",
    b"{}",
    b"[[],[]]",
    b"null",
    b"/dev/zero",
    b"../../../etc/passwd",
    b"{{ 1 / 0 }}",
    b"<|im_start|>",
    b"<tool_call>",
    b"</think>",
    b"&a [*a, *a]",
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    0.5,
    2**63,
    10**30,
    10**400,
    -(2**31) - 1,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "\ud800",
    "x" * 20_000,
    "../../x",
    "http://127.0.0.1:9/",
    "data:image/png;base64,AAAA",
    [],
    {},
    [None],
    [[]],
    {"": None},
    [0] * 3000,
    {"type": "object", "$ref": "#"},
]
DEEP = "@deep@"
NUMBER = "@number@"
RAW_VALUES = {DEEP: "[" * 3000 + "]" * 3000, NUMBER: "7" * 5000}
DEEPER = 200_000
MOST_PLACES = 400
LONGEST_INPUT = 1 << 18
LONGEST_DOCUMENT = 1 << 19
"""Processor time grows with what is read: of more, it says nothing of a reader."""
INTEGERS = [0, 1, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


def corpus_of(target: str) -> dict[str, bytes]:
    """Returns the committed inputs of a target by their names."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / target).iterdir())}


def inputs(target: str) -> st.SearchStrategy[bytes]:
    """Any bytes, and the inputs of a target's corpus with changed bytes, and changed values of JSON."""
    good = list(corpus_of(target).values())
    ways = [st.binary(max_size=300), changed_bytes(good), changed_bytes(good)]
    documents = [found for one in good if (found := documents_in(one))]
    return st.one_of(*ways, *([changed_values(documents)] * 3 if documents else []))


@st.composite
def changed_bytes(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """A good input after a few changes of its bytes."""
    content = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        end = min(len(content), at + draw(st.integers(0, 40)))
        change = draw(
            st.sampled_from(("cut", "take out", "flip", "raw", "repeat", "splice", "integer", "any"))
        )
        if change == "cut":
            del content[at:]
        elif change == "take out":
            del content[at:end]
        elif change == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "raw":
            content[at:end] = draw(st.sampled_from(RAW))
        elif change == "repeat":
            content[at:at] = bytes(content[at:end]) * draw(st.sampled_from((1, 50, 2000)))
        elif change == "splice":
            other = draw(st.sampled_from(good))
            content[at:] = other[draw(st.integers(0, len(other))) :]
        elif change == "integer":
            size = draw(st.sampled_from((4, 8)))
            number = draw(st.sampled_from(INTEGERS)) % 256**size
            content[at : at + size] = number.to_bytes(size, "little")
        else:
            content[at:end] = draw(st.binary(max_size=20))
    return bytes(content[:LONGEST_INPUT])


def documents_in(content: bytes) -> list[Any] | None:
    """Returns the JSON of a file, or its lines: the JSON of those that are such. None where it has none."""
    for parts in ([content], content.split(b"\n")):
        found = [_document(part) for part in parts]
        if any(isinstance(one, dict | list) for one in found):
            return found
    return None


def _document(part: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(part)
        if isinstance(found, dict | list):
            return found
    return part


@st.composite
def changed_values(draw: st.DrawFn, documents: list[list[Any]]) -> bytes:
    """A good JSON text with a few of its values replaced, taken away, renamed, doubled or exchanged."""
    found = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(found))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(("value", "value", "raw", "away", "rename", "another", "many", "deep")))
        if change == "value":
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        elif change == "raw":
            holder[key] = draw(st.sampled_from((DEEP, NUMBER)))
        elif change == "away":
            del holder[key]
        elif change == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from(("", "type", "x\0", "y" * 300, "__class__")))] = holder.pop(key)
        elif change == "another":
            other, at = draw(st.sampled_from(places))
            holder[key] = json.loads(json.dumps(other[at]))
        elif change == "many":
            times = draw(st.sampled_from((2, 300)))
            if times * len(_spelled(holder[key])) <= LONGEST_DOCUMENT:
                holder[key] = [holder[key]] * times
        else:
            for _ in range(draw(st.sampled_from((1, 130, 400)))):
                holder[key] = [holder[key]]
    lines = (one if isinstance(one, bytes) else _spelled(one) for one in found)
    return b"\n".join(lines)[:LONGEST_DOCUMENT]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each holder with each key or index, the outer ones first; lines that are no JSON stay."""
    level, count = [value], 0
    while level and count < MOST_PLACES:
        inner = []
        for holder in level:
            for key in holder if isinstance(holder, dict) else range(len(holder)):
                if isinstance(holder[key], bytes):
                    continue
                yield holder, key
                count += 1
                if isinstance(holder[key], dict | list):
                    inner.append(holder[key])
        level = inner


def deep_inputs(target: str, most: int = 6) -> Iterator[bytes]:
    """Yields the JSON inputs of a target's corpus with one value, of the outer ones first, nested far deeper
    than any stack; none for other formats.
    """
    deep = b"[" * DEEPER + b"]" * DEEPER
    for content in corpus_of(target).values():
        for number in range(most):
            found = documents_in(content)
            places = list(_places(found)) if found else []
            if number >= len(places):
                break
            holder, key = places[number]
            holder[key] = DEEP
            lines = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in found or ())
            yield b"\n".join(lines).replace(f'"{DEEP}"'.encode(), deep)


def _spelled(value: Any) -> bytes:
    text = json.dumps(value)
    for name, raw in RAW_VALUES.items():
        text = text.replace(f'"{name}"', raw)
    return text.encode()
