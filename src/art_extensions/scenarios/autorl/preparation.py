"""What a model writes before a run of AutoRL: inputs, a system prompt and a rubric.

Inputs are asked for in portions; those that are like others are left out, and the rest is split into
training and test. Each answer is JSON with one field.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.rewards.llm.request import Request
from art_extensions.scenarios.generator import generator_channel
from art_extensions.scenarios.likeness import likeness, words

if TYPE_CHECKING:
    from art_extensions.scenarios.generator import Generator


GENERATOR_SOURCE = "generator/autorl"
"""The name under which its costs are told."""
GENERATOR_SYSTEM_PROMPT = (
    "You prepare a reinforcement learning run in which a small language model learns one task. What stands "
    "between <task> and </task> is the task as its owner describes it. Answer with JSON alone."
)
EMPHASES = (
    "everyday inputs, as most users would send them",
    "hard inputs: long, detailed, with several demands at once",
    "unusual inputs: rare topics, odd wording, other kinds of users",
    "short and vague inputs that leave much open",
    "inputs in which a careless answer would go wrong",
)
"""Each portion has another one: asked the same again, a model writes the same again."""
SHOWN_INPUTS = 40
"""The number of inputs there already that the generator is shown."""
SHOWN_CHARS = 300
MAX_TOKENS = 4000


def ask_for_inputs(task: str, count: int, *, known: Sequence[str], portion: int, salt: str) -> Request:
    """A question for `count` inputs that differ from those that are known."""
    there = "\n".join(f"- {text[:SHOWN_CHARS]}" for text in known[-SHOWN_INPUTS:])
    avoid = f"\n\nThese exist already; write none that says the same:\n{there}" if there else ""
    text = (
        f"<task>\n{task}\n</task>\n\n"
        f"Write exactly {count} inputs for this task: each is what a user would send, complete as it stands, "
        "without the answer and without any remark. They must differ from each other in topic, in wording, "
        f"in length and in difficulty. This time: {EMPHASES[portion % len(EMPHASES)]}.{avoid}\n\n"
        f'The form of the answer: {{"inputs": [exactly {count} texts]}}'
    )
    listed = {"type": "array", "items": {"type": "string"}, "minItems": count, "maxItems": count}
    return _request("inputs", text, listed, salt)


def ask_for_system_prompt(task: str, examples: Sequence[str], *, salt: str) -> Request:
    """A question for the system prompt of the model that learns."""
    text = (
        f"<task>\n{task}\n</task>\n\n{_examples(examples)}"
        "Write the system prompt for the small model that will do this task: what its role is, what a good "
        "answer has, which form it takes. Clear and short: at most 150 words, no examples.\n\n"
        'The form of the answer: {"system_prompt": "..."}'
    )
    return _request("system_prompt", text, {"type": "string"}, salt)


def ask_for_rubric(task: str, examples: Sequence[str], *, salt: str) -> Request:
    """A question for what the judge goes by."""
    text = (
        f"<task>\n{task}\n</task>\n\n{_examples(examples)}"
        "Write the rubric by which a judge compares several answers to one input of this task: three to six "
        "bullet points, the most important first, each something that can be checked by reading the answer. "
        "Say what makes an answer fail. Mere length and flattery earn nothing.\n\n"
        'The form of the answer: {"rubric": "- ...\\n- ..."}'
    )
    return _request("rubric", text, {"type": "string"}, salt)


def _examples(examples: Sequence[str]) -> str:
    if not examples:
        return ""
    shown = "\n".join(f"- {text[:SHOWN_CHARS]}" for text in examples)
    return f"Some of its inputs:\n{shown}\n\n"


def _request(field: str, text: str, value: dict[str, Any], salt: str) -> Request:
    schema = {
        "type": "object",
        "properties": {field: value},
        "required": [field],
        "additionalProperties": False,
    }
    messages = ({"role": "system", "content": GENERATOR_SYSTEM_PROMPT}, {"role": "user", "content": text})
    return Request(messages=messages, schema=schema, schema_name=field, max_tokens=MAX_TOKENS, salt=salt)


_LOGGER = logging.getLogger(__name__)

DEFAULT_SIMILARITY = 0.9
PORTION = 10
"""Inputs in one answer: of more, a model writes the last ones alike."""
BARREN_PORTIONS = 3
"""The number of answers in a row with nothing new in them after which no more is asked."""
LONGEST_INPUT = 20_000
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
    similarity: float = DEFAULT_SIMILARITY,
    seed: int = 0,
) -> Inputs:
    """Ask the generator for inputs, in portions, until there are enough different ones.

    similarity: from which likeness (0 to 1, of rapidfuzz's token_sort_ratio) two inputs are one; 1.0: only
    when their words are the same, in the same order. Inputs with different numbers are never one. Fewer
    than asked for come with a warning.

    Raises LlmAnswerError where there are not even `num_test` + 1, LlmError, ConfigurationError.
    """
    channel, wanted = generator_channel(generator, source=GENERATOR_SOURCE), num_train + num_test
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
            written = await channel.ask_json(asked, _read_inputs)
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
    return split_inputs(kept, num_test=num_test, seed=seed, rejected=rejected)


def own_inputs(inputs: Iterable[str], *, num_test: int, similarity: float, seed: int) -> Inputs:
    """The user's own inputs, each once, split. Raises ConfigurationError when too few are left."""
    kept: list[str] = []
    rejected: dict[str, int] = {}
    add_different(kept, list(inputs), rejected, similarity=similarity, most=None)
    if len(kept) <= num_test:
        raise ConfigurationError(f"inputs=: {len(kept)} different ones, {num_test + 1} are needed")
    return split_inputs(kept, num_test=num_test, seed=seed, rejected=rejected)


def split_inputs(texts: Sequence[str], *, num_test: int, seed: int, rejected: Mapping[str, int]) -> Inputs:
    """Returns the inputs in a seeded order, with the first `num_test` for the test."""
    mixed = sorted(texts)
    random.Random(f"split/{seed}").shuffle(mixed)
    return Inputs(test=tuple(mixed[:num_test]), train=tuple(mixed[num_test:]), rejected=dict(rejected))


def add_different(
    texts: list[str],
    new: Iterable[str],
    rejected: dict[str, int],
    *,
    similarity: float,
    most: int | None,
) -> None:
    """Adds those of `new` to `texts` that are like none in it, up to `most`; counts the others by reason."""
    for text in (one.strip() for one in new):
        reason = "empty" if not text else "too_long" if len(text) > LONGEST_INPUT else None
        if reason is None and any(are_alike(text, other, similarity) for other in texts):
            reason = "near_duplicate"
        if reason is not None:
            rejected[reason] = rejected.get(reason, 0) + 1
        elif most is None or len(texts) < most:
            texts.append(text)


def are_alike(one: str, two: str, similarity: float) -> bool:
    """Returns whether two inputs are one.

    >>> are_alike("Say yes, please!", "say yes please", 1.0), are_alike("Add 17 and 4", "Add 17 and 5", 0.5)
    (True, False)

    Raises ConfigurationError where rapidfuzz is needed and not installed.
    """
    first, second = words(one), words(two)
    if not first and not second:
        return one == two
    if first == second or similarity >= 1:
        return first == second
    return NUMBER.findall(one) == NUMBER.findall(two) and likeness(one, two) >= similarity


def _read_inputs(answer: Any) -> list[str]:
    """Raises ValueError for anything but texts: the error's text goes back to the model."""
    listed = answer if isinstance(answer, list) else answer["inputs"]
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise ValueError('"inputs" must be a list of texts')
    return listed


MOST_EXAMPLES = 5
LONGEST_INSTRUCTION = 8000


async def write_system_prompt(
    task_description: str, *, generator: Generator, examples: Sequence[str] = (), seed: int = 0
) -> str:
    """A system prompt for the task. examples: some inputs. Raises LlmError, ConfigurationError."""
    asked = ask_for_system_prompt(task_description, examples[:MOST_EXAMPLES], salt=f"system_prompt/{seed}")
    return await generator_channel(generator, source=GENERATOR_SOURCE).ask_json(
        asked, lambda said: _text(said, "system_prompt")
    )


async def write_rubric(
    task_description: str, *, generator: Generator, examples: Sequence[str] = (), seed: int = 0
) -> str:
    """Writes the rubric for the judge of the task. examples: some inputs. Raises LlmError,
    ConfigurationError.
    """
    asked = ask_for_rubric(task_description, examples[:MOST_EXAMPLES], salt=f"rubric/{seed}")
    return await generator_channel(generator, source=GENERATOR_SOURCE).ask_json(
        asked, lambda said: _text(said, "rubric")
    )


def _text(answer: Any, name: str) -> str:
    """Raises ValueError for anything but a text with something in it."""
    text = answer.get(name) if isinstance(answer, dict) else answer
    if isinstance(text, list) and all(isinstance(line, str) for line in text):
        text = "\n".join(text)  # bullet points as a list
    if not isinstance(text, str) or not 0 < len(text.strip()) <= LONGEST_INSTRUCTION:
        raise ValueError(f'"{name}" must be a text of 1 to {LONGEST_INSTRUCTION} characters')
    return text.strip()
