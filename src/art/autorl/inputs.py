"""Inputs for a task, written by a model: different from each other, split into training and test."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.autorl.prompts import SOURCE, ask_for_inputs
from art.errors import ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.runs.generator import generator_channel
from art.runs.likeness import likeness, words

if TYPE_CHECKING:
    from art.runs.generator import Generator

_LOGGER = logging.getLogger(__name__)

SIMILARITY = 0.9
PORTION = 10
"""Inputs in one answer: of more, a model writes the last ones alike."""
BARREN_PORTIONS = 3
"""After so many answers in a row with nothing new in them, no more is asked."""
LONGEST = 20_000
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """No text is in both lists, nor like one in the other."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    rejected: Mapping[str, int] = field(default_factory=dict)
    """How many were left out, by reason: near_duplicate, empty, too_long."""

    def to_dict(self) -> dict[str, Any]:
        return {"train": list(self.train), "test": list(self.test), "rejected": dict(self.rejected)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Inputs:
        return cls(
            train=tuple(data["train"]), test=tuple(data["test"]), rejected=dict(data.get("rejected", {}))
        )


async def generate_inputs(
    task_description: str,
    *,
    generator: Generator,
    num_train: int = 25,
    num_test: int = 5,
    similarity: float = SIMILARITY,
    seed: int = 0,
) -> Inputs:
    """Ask the generator for inputs, in portions, until there are enough different ones.

    similarity: from which likeness (0 to 1, of rapidfuzz's token_sort_ratio) two inputs are one; 1.0: only
    when their words are the same, in the same order. Inputs with different numbers are never one. Fewer
    than asked for come with a warning.

    Raises LlmAnswerError where there are not even `num_test` + 1, LlmError, ConfigurationError.
    """
    channel, wanted = generator_channel(generator, source=SOURCE), num_train + num_test
    if num_train < 1 or num_test < 1 or not 0 < similarity <= 1:
        raise ConfigurationError(
            f"num_train={num_train!r}, num_test={num_test!r}, similarity={similarity!r}: at least "
            "1 input each, and a share above 0"
        )
    kept: list[str] = []
    rejected: dict[str, int] = {}
    portion = barren = 0
    failed: LlmError | None = None
    while len(kept) < wanted and barren < BARREN_PORTIONS:
        count = min(PORTION, wanted - len(kept))
        asked = ask_for_inputs(
            task_description, count, known=kept, portion=portion, salt=f"inputs/{seed}/{portion}"
        )
        portion, before = portion + 1, len(kept)
        try:
            written = await channel.ask_json(asked, _read)
        except (LlmAnswerError, LlmRefusedError) as error:
            _LOGGER.warning("a portion of inputs is left out: %s", error)
            failed = error
        else:
            add_different(kept, written, rejected, similarity=similarity, most=wanted)
        barren = 0 if len(kept) > before else barren + 1
    if len(kept) <= num_test:
        raise LlmAnswerError(
            f"{channel.llm.name!r} wrote {len(kept)} different inputs, {num_test + 1} are needed (left out: "
            f"{rejected or 'none'}): give another generator, inputs= of your own, or a similarity above "
            f"{similarity}"
        ) from failed
    if len(kept) < wanted:
        _LOGGER.warning(
            "%d of %d inputs: %s wrote no more different ones", len(kept), wanted, channel.llm.name
        )
    return split(kept, num_test=num_test, seed=seed, rejected=rejected)


def own_inputs(given: Iterable[str], *, num_test: int, similarity: float, seed: int) -> Inputs:
    """The user's own inputs, each once, split. Raises ConfigurationError when too few are left."""
    kept: list[str] = []
    rejected: dict[str, int] = {}
    add_different(kept, list(given), rejected, similarity=similarity, most=None)
    if len(kept) <= num_test:
        raise ConfigurationError(f"inputs=: {len(kept)} different ones, {num_test + 1} are needed")
    return split(kept, num_test=num_test, seed=seed, rejected=rejected)


def split(texts: Sequence[str], *, num_test: int, seed: int, rejected: Mapping[str, int]) -> Inputs:
    """In a seeded order, the first `num_test` for the test."""
    mixed = sorted(texts)
    random.Random(f"split/{seed}").shuffle(mixed)
    return Inputs(test=tuple(mixed[:num_test]), train=tuple(mixed[num_test:]), rejected=dict(rejected))


def add_different(
    kept: list[str],
    new: Iterable[str],
    rejected: dict[str, int],
    *,
    similarity: float,
    most: int | None,
) -> None:
    """Put those of `new` into `kept` that are like none in it, up to `most`; count the others by reason."""
    for text in (one.strip() for one in new):
        reason = "empty" if not text else "too_long" if len(text) > LONGEST else None
        if reason is None and any(alike(text, other, similarity) for other in kept):
            reason = "near_duplicate"
        if reason is not None:
            rejected[reason] = rejected.get(reason, 0) + 1
        elif most is None or len(kept) < most:
            kept.append(text)


def alike(one: str, two: str, similarity: float) -> bool:
    """Whether two inputs are one.

    >>> alike("Say yes, please!", "say yes please", 1.0), alike("Add 17 and 4", "Add 17 and 5", 0.5)
    (True, False)

    Raises ConfigurationError where rapidfuzz is needed and not installed.
    """
    first, second = words(one), words(two)
    if not first and not second:
        return one == two
    if first == second or similarity >= 1:
        return first == second
    return NUMBER.findall(one) == NUMBER.findall(two) and likeness(one, two) >= similarity


def _read(answer: Any) -> list[str]:
    """Raises ValueError for anything but texts: the error's text goes back to the model."""
    listed = answer if isinstance(answer, list) else answer["inputs"]
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise ValueError('"inputs" must be a list of texts')
    return listed
