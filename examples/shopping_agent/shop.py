"""A shop with two tools: one tells the price of an item, the other multiplies. The agent tells a total.

Purchases are drawn, and each is of one split: a question of "val" is never trained on. The price is drawn
with it, so an answer can only be looked up.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
SCORE = "right"
MAX_TOKENS = 40
ITEMS = (
    *("bag", "bike", "book", "camera", "chair", "clock", "coat", "desk", "drum", "guitar"),
    *("kettle", "lamp", "mirror", "phone", "radio", "rug", "shirt", "sofa", "tent", "vase"),
)
QUESTIONS = (
    "What do {count} {item}s cost?",
    "How much are {count} {item}s?",
    "I buy {count} {item}s. Total?",
)


def tool(name: str, description: str, **kinds: str) -> dict[str, Any]:
    """The OpenAI schema of a tool whose parameters are all required."""
    properties = {parameter: {"type": kind} for parameter, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(kinds)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_price", "The price of one item.", item="string"),
    tool("multiply", "The product of two numbers.", a="integer", b="integer"),
]


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """A question, and the price that the shop asks today."""

    question: str
    item: str
    count: int
    price: int

    @property
    def total(self) -> int:
        return self.count * self.price


def draw_purchase(split: str, index: int) -> Purchase:
    """The purchase at `index` of a split, "train" or "val"; one question of five is of "val"."""
    dice = random.Random(f"shop/{split}/{index}")
    while True:
        item, count, price = dice.choice(ITEMS), dice.randint(2, 9), dice.randint(2, 30)
        question = dice.choice(QUESTIONS).format(count=count, item=item)
        if (zlib.crc32(question.encode()) % 5 == 0) == (split == "val"):
            return Purchase(question=question, item=item, count=count, price=price)


def call(number: int, name: str, **arguments: Any) -> Message:
    """An assistant's message with one call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call{number}", "type": "function", "function": function}],
    }


def solved(purchase: Purchase, first: int = 0) -> list[Message]:
    """The question with both calls and the answer; the calls are numbered from `first`."""
    return [
        {"role": "user", "content": purchase.question},
        call(first, "get_price", item=purchase.item),
        {"role": "tool", "tool_call_id": f"call{first}", "content": str(purchase.price)},
        call(first + 1, "multiply", a=purchase.price, b=purchase.count),
        {"role": "tool", "tool_call_id": f"call{first + 1}", "content": str(purchase.total)},
        {"role": "assistant", "content": str(purchase.total)},
    ]


SHOWN = (
    Purchase(question="What do 4 hats cost?", item="hat", count=4, price=7),
    Purchase(question="How much are 2 spoons?", item="spoon", count=2, price=11),
)
"""Items that no scenario has."""
PROMPTS = ("the tools alone", "one example", "two examples")
"""Ways to ask, the first of which is trained: so many questions stand before this one, with their calls."""
EXAMPLES = (0, 1, 2)


class ShopWorld:
    """One question: a call of each tool, then the total.

    The reward is 1 for the right total behind both calls. A conversation that goes wrong later than another
    earns a little: 0.1 for the right price asked, 0.3 for the right product asked too. A call with wrong
    arguments, or anything else that is not the next step, ends it.
    """

    def __init__(self, purchase: Purchase, prompt: int = 0) -> None:
        self.purchase = purchase
        self.tools: list[dict[str, Any]] | None = TOOLS
        self.opening: list[Message] = []
        for place, shown in enumerate(SHOWN[: EXAMPLES[prompt]]):
            self.opening += solved(shown, first=10 * (place + 1))
        self.opening.append({"role": "user", "content": purchase.question})
        self.asked = 0
        """Right calls so far."""
        self.done, self.reward = False, 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""

    def reply(self, message: Mapping[str, Any]) -> list[Message]:
        """Runs the call of a message, or takes its text as the answer."""
        calls = message.get("tool_calls") or []
        if not calls:
            right = self.asked == 2 and read_total(message.get("content")) == self.purchase.total
            wrong = f"wrong ({self.purchase.total} is right, behind both calls)"
            return self._end("right" if right else wrong, right=right)
        wanted = ("get_price", "multiply", "")[self.asked]
        if len(calls) != 1 or calls[0]["function"]["name"] != wanted or not self._is_right(calls[0]):
            return self._end(f"wrong call (right calls before: {self.asked})")
        self.asked += 1
        result = self.purchase.price if self.asked == 1 else self.purchase.total
        return [{"role": "tool", "tool_call_id": calls[0]["id"], "content": str(result)}]

    def demonstration(self) -> list[Message]:
        """Returns a conversation with both calls and the right answer."""
        return [*self.opening[:-1], *solved(self.purchase)]

    def _is_right(self, called: Mapping[str, Any]) -> bool:
        arguments = read_arguments(called["function"]["arguments"])
        if self.asked == 0:
            return arguments == {"item": self.purchase.item}
        pair = (self.purchase.price, self.purchase.count)
        return arguments in ({"a": pair[0], "b": pair[1]}, {"a": pair[1], "b": pair[0]})

    def _end(self, ending: str, *, right: bool = False) -> list[Message]:
        self.ending = ending
        self.done, self.reward = True, 1.0 if right else (0.0, 0.1, 0.3)[self.asked]
        self.metrics = {"right": float(right), "calls": float(self.asked)}
        return []


def read_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None where they are no object of texts and whole numbers."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(type(value) not in (str, int) for value in found.values()):
        return None
    return found


def read_total(text: str | None) -> int | None:
    """Returns the number that an answer consists of, with a full stop or without."""
    said = (text or "").strip().removesuffix(".")
    return int(said) if said.isascii() and said.isdigit() and len(said) <= 6 else None
