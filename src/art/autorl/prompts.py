"""What the generator is asked: inputs, a system prompt, a rubric. Each answer is JSON with one field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from art.llm.request import Request

SOURCE = "generator/autorl"
"""Under which its costs are told."""
SYSTEM = (
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
SHOWN = 40
"""Of the inputs that are there already."""
SHOWN_CHARS = 300
MAX_TOKENS = 4000


def ask_for_inputs(task: str, count: int, *, known: Sequence[str], portion: int, salt: str) -> Request:
    """A question for `count` inputs that differ from those that are known."""
    there = "\n".join(f"- {text[:SHOWN_CHARS]}" for text in known[-SHOWN:])
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
    messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": text})
    return Request(messages=messages, schema=schema, schema_name=field, max_tokens=MAX_TOKENS, salt=salt)
