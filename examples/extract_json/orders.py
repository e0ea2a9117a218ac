"""Sentences about an order, and the JSON object that says the same.

Orders are drawn, and each is of one split: a sentence of "val" is never trained on. Nothing forces a reply
into a form.
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
KEYS = ("name", "city", "item", "count")
NAMES = (
    *("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack"),
    *("Laura", "Mark", "Nina", "Oscar", "Paula", "Ryan", "Sara", "Tom", "Vera", "Will"),
)
CITIES = (
    *("Athens", "Berlin", "Boston", "Cairo", "Chicago", "Dallas", "Delhi", "Denver", "Dublin", "Lima"),
    *("Lisbon", "London", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Seattle", "Tokyo", "Vienna"),
)
ITEMS = (
    *("bag", "bike", "book", "camera", "chair", "clock", "coat", "desk", "drum", "guitar"),
    *("kettle", "lamp", "mirror", "phone", "radio", "rug", "shirt", "sofa", "tent", "vase"),
)
SENTENCES = (
    "{name} from {city} ordered {count} {item}s.",
    "{count} {item}s were bought by {name}, who lives in {city}.",
    "An order of {count} {item}s goes to {name} in {city}.",
    "Please send {count} {item}s to {name} in {city}.",
    "In {city}, {name} is waiting for {count} {item}s.",
    "{name} will pick up {count} {item}s at our shop in {city}.",
)
SCHEMA = (
    'Extract the order as JSON with the keys "name", "city", "item" and "count". Reply with the JSON alone.'
)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the sentence says."""

    sentence: str
    name: str
    city: str
    item: str
    count: int

    @property
    def answer(self) -> str:
        """The reply that earns everything."""
        return json.dumps({key: getattr(self, key) for key in KEYS})


def draw_order(split: str, index: int) -> Order:
    """The order at `index` of a split, "train" or "val"; one sentence of five is of "val"."""
    dice = random.Random(f"order/{split}/{index}")
    while True:
        facts: dict[str, Any] = {
            "name": dice.choice(NAMES),
            "city": dice.choice(CITIES),
            "item": dice.choice(ITEMS),
            "count": dice.randint(2, 20),
        }
        order = Order(sentence=dice.choice(SENTENCES).format(**facts), **facts)
        if (zlib.crc32(order.sentence.encode()) % 5 == 0) == (split == "val"):
            return order


SHOWN = tuple(
    Order(sentence=SENTENCES[place].format(**facts), **facts)  # words that no scenario has
    for place, facts in (
        (0, {"name": "Zoe", "city": "Bern", "item": "hat", "count": 7}),
        (3, {"name": "Karl", "city": "Miami", "item": "spoon", "count": 12}),
    )
)
PROMPTS = ("one example", "the keys alone", "two examples")
"""Ways to ask, the first of which is trained: so many orders and their answers stand before the sentence."""
EXAMPLES = (1, 0, 2)


class OrderWorld:
    """One sentence and one reply.

    The reward is the share of right values in a JSON object with exactly the four keys, and 0 for any other
    reply: a model that repeats the sentence earns nothing.
    """

    tools: list[dict[str, Any]] | None = None

    def __init__(self, order: Order, prompt: int = 0) -> None:
        self.order = order
        self.opening: list[Message] = [{"role": "system", "content": SCHEMA}]
        for shown in SHOWN[: EXAMPLES[prompt]]:
            self.opening += [
                {"role": "user", "content": shown.sentence},
                {"role": "assistant", "content": shown.answer},
            ]
        self.opening.append({"role": "user", "content": order.sentence})
        self.done, self.reward = False, 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""

    def reply(self, message: Mapping[str, Any]) -> list[Message]:
        """Takes the reply; nothing answers it."""
        read = read_object(str(message.get("content") or ""))
        right = 0 if read is None else sum(is_same(read[key], getattr(self.order, key)) for key in KEYS)
        self.done, self.reward = True, right / len(KEYS)
        formed = f"{right} of {len(KEYS)} values right"
        self.ending = "invalid (no JSON object with the four keys)" if read is None else formed
        self.metrics = {"right": float(right == len(KEYS)), "well_formed": float(read is not None)}
        return []

    def demonstration(self) -> list[Message]:
        """Returns a conversation with the right answer."""
        return [*self.opening, {"role": "assistant", "content": self.order.answer}]


def read_object(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that a text consists of; None if it is none, or has other keys."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and set(found) == set(KEYS) else None


def is_same(said: Any, wanted: Any) -> bool:
    """Returns whether a value is the wanted one: 7 is not "7", and not true."""
    return type(said) is type(wanted) and said == wanted
