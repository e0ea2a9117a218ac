"""The tokens of a rollout, coloured: text by the model's tokenizer, numbers from ledger and record.

The ledger is opened read-only; nothing of the server is needed. Signals of a token, each in five classes:

    logprob     when it was sampled         ledger
    ratio       trainer against sampler     steps/NNNN/tokens.safetensors
    advantage   as the loss had it          "
    entropy     of the model there          "
    mask        clipped, masked, trained    "
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.process.foreign_files import parse_json, read_foreign
from art.tracking.step_record import read_tokens
from art_extensions.ui.conversation import visible
from art_extensions.ui.run_files import RunFiles

SIGNALS = ("logprob", "ratio", "advantage", "entropy", "mask")
_LOGPROB_STEPS = (-0.05, -0.5, -1.5, -3.0)
"""Limits of the colours; above the first: nearly certain. Probabilities 0.95, 0.6, 0.22, 0.05."""
_ENTROPY_STEPS = (0.05, 0.5, 1.2, 2.0)
_RATIO_STEPS = (0.8, 0.95, 1.05, 1.25)
_ADVANTAGE_STEPS = (-1.0, -1e-6, 1e-6, 1.0)


@dataclass(frozen=True)
class LedgerSample:
    """One completion as the ledger has it."""

    sample: str
    parent: str | None
    fork: str | None
    """Why its prompt does not extend the sample before it."""
    shared: int
    """Ids of the prompt that are the parent's."""
    prompt: Sequence[int]
    """The ids behind those."""
    completion: Sequence[int]
    logprobs: Sequence[float]
    finish: str
    step: int | None


@dataclass(frozen=True)
class ShownToken:
    """One sampled token: its text, a class for each signal, its numbers."""

    text: str
    classes: str
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShownSample:
    """One completion: the text before it that is new, then its tokens."""

    number: int
    ledger: LedgerSample
    before: str
    tokens: tuple[ShownToken, ...]


def read_samples(run: RunFiles, ids: Sequence[str]) -> dict[str, LedgerSample]:
    """Returns the samples that the ledger of a run's folder has among these, of who views the run."""
    of_viewer, values = _of_viewer(run)
    query = (
        "SELECT sample_id, parent_id, fork_reason, shared, prompt, completion, logprobs, finish_reason, step "
        f"FROM samples WHERE sample_id IN ({', '.join('?' * len(ids))}){of_viewer}"
    )
    rows = run.read_stored("ledger", query, [*ids, *values]) if ids else []
    return {
        name: LedgerSample(
            name, parent, fork, shared, _numbers("i", prompt), _numbers("i", ids), _numbers("f", logs), *rest
        )
        for name, parent, fork, shared, prompt, ids, logs, *rest in rows
    }


def samples_of_rollout(run: RunFiles, rollout: str) -> list[str]:
    """Returns the ids of a rollout's samples, in the order in which they were sampled."""
    of_viewer, values = _of_viewer(run)
    query = f"SELECT sample_id FROM samples WHERE rollout_id = ?{of_viewer} ORDER BY created_at, rowid"
    rows = run.read_stored("ledger", query, [rollout, *values])
    return [row[0] for row in rows]


def _of_viewer(run: RunFiles) -> tuple[str, list[str]]:
    """A condition on samples. A rollout may have the name of another tenant's."""
    tenant = run.viewer.tenant
    return ("", []) if tenant is None else (" AND tenant = ?", [tenant])


def show_samples(run: RunFiles, step: int | None, ids: Sequence[str]) -> list[ShownSample]:
    """Returns the completions with these ids as far as the ledger has them. step: that trained them."""
    found = read_samples(run, ids)
    path = run.tokenizer()
    pieces = read_vocabulary(path, path.stat().st_mtime_ns) if path else TokenPieces({}, False, frozenset())
    recorded = _recorded(run, step, ids)
    shown = []
    for number, name in enumerate(ids):
        if (one := found.get(name)) is None:
            continue
        tokens = tuple(_tokens(one, pieces, recorded.get(name, {})))
        before = visible("".join(pieces.texts(one.prompt)))
        shown.append(ShownSample(number, one, before, tokens))
    return shown


def _tokens(one: LedgerSample, pieces: TokenPieces, recorded: Mapping[str, Any]) -> Iterable[ShownToken]:
    texts = pieces.texts(one.completion)
    rows = {int(place): row for row, place in enumerate(recorded.get("place", ()))}
    for place, (number, text, logprob) in enumerate(zip(one.completion, texts, one.logprobs, strict=False)):
        numbers: dict[str, float | int | str] = {"id": number, "logprob": round(float(logprob), 4)}
        classes = [f"l{class_of(-logprob, [-edge for edge in _LOGPROB_STEPS])}"]
        row = rows.get(place)
        if row is not None:
            for name, letter, edges in (
                ("ratio", "r", _RATIO_STEPS),
                ("advantage", "a", _ADVANTAGE_STEPS),
                ("entropy", "e", _ENTROPY_STEPS),
            ):
                value = float(recorded[name][row])
                if math.isfinite(value):
                    numbers[name] = round(value, 4)
                    classes.append(f"{letter}{class_of(value, edges)}")
            mask = (
                "masked" if recorded["masked"][row] else "clipped" if recorded["clipped"][row] else "trained"
            )
            numbers["mask"] = mask
            numbers["trainer"] = round(float(recorded["logprob"][row]), 4)
            classes.append(f"m-{mask}")
        yield ShownToken(visible(text), " ".join(classes), numbers)


def class_of(value: float, edges: Sequence[float]) -> int:
    """Returns how many of the ascending edges a value reaches, 0 to 4."""
    return sum(value >= edge for edge in edges)


def _recorded(run: RunFiles, step: int | None, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The recorded columns by sample; empty where nothing was recorded or it cannot be read."""
    if step is None:
        return {}
    with suppress(ARTError, OSError):
        table = read_tokens(run.files.tokens(step))
        if table is not None:
            found = {name: table.of_sample(name) for name in ids}
            return {name: columns for name, columns in found.items() if columns is not None}
    return {}


@dataclass(frozen=True)
class TokenPieces:
    """The vocabulary of a tokenizer, to spell ids."""

    words: Mapping[int, str]
    byte_level: bool
    """Whether its words stand for bytes, one character each."""
    plain: frozenset[int]
    """Added tokens: their words are text."""

    def spell(self, number: int) -> bytes:
        """Returns the bytes of an id; part of a character where the vocabulary is of bytes."""
        word = self.words.get(number)
        if word is None:
            return f"⟨id {number}⟩".encode()
        if number in self.plain:
            return word.encode("utf-8", "replace")
        if self.byte_level:
            table = byte_of_character()
            if all(character in table for character in word):
                return bytes(table[character] for character in word)
        if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
            with suppress(ValueError):
                return bytes([int(word[3:5], 16)])
        return word.replace("\u2581", " ").encode("utf-8", "replace")

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Returns a text for each id; the bytes of one character stand with the last of its ids."""
        texts, waiting = [], b""
        for number in ids:
            waiting += self.spell(number)
            try:
                texts.append(waiting.decode())
                waiting = b""
            except UnicodeDecodeError as error:
                is_cut = error.reason == "unexpected end of data" and len(waiting) - error.start < 4
                if is_cut:  # the character goes on
                    texts.append(waiting[: error.start].decode())
                    waiting = waiting[error.start :]
                else:
                    texts.append(waiting.decode("utf-8", "backslashreplace"))
                    waiting = b""
        if waiting and texts:
            texts[-1] += waiting.decode("utf-8", "backslashreplace")
        return texts


@lru_cache(maxsize=4)
def read_vocabulary(path: Path, changed: int) -> TokenPieces:
    """Returns the vocabulary of a `tokenizer.json`; an empty one where it cannot be read."""
    with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
        stored = parse_json(read_foreign(path))
        vocabulary = stored["model"]["vocab"]
        items = enumerate(one[0] for one in vocabulary) if isinstance(vocabulary, list) else (
            (number, word) for word, number in vocabulary.items()
        )  # fmt: skip
        words = {number: str(word) for number, word in items}
        added = {one["id"]: str(one["content"]) for one in stored.get("added_tokens") or ()}
        return TokenPieces(words | added, "ByteLevel" in json.dumps(stored.get("decoder")), frozenset(added))
    return TokenPieces({}, False, frozenset())


@lru_cache(maxsize=1)
def byte_of_character() -> Mapping[str, int]:
    """Returns the printable stand-ins of bytes in a byte-level vocabulary (GPT-2's table), reversed."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {
        chr(256 + number): value for number, value in enumerate(moved)
    }


def _numbers(kind: str, data: bytes) -> array[Any]:
    found: array[Any] = array(kind)
    with suppress(ValueError, TypeError):
        found.frombytes(data)
    return found
