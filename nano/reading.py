"""Batches of dialogs for nano-words, and the share of replies that a model gets right."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.rendering.nano import create_nano_renderer
from nano.examples import Example, from_dialog, padded
from nano.vocabulary import CONTENT
from nano.words import Dialog, WordDialogs

POOL = 256
"""Dialogs that are drawn at once and sorted by their length."""
TOKENS = 2560
"""Tokens of a batch, padding included."""
EVALUATED_TOKENS = 8192
"""As many where nothing is trained."""
REPEATED = 0.06
"""Share of the batches that are random tokens over and over."""
PAIRED = 0.1
"""Share of the batches that are random pairs of tokens, told again in other orders."""
APART = 0.25
"""Share of the batches with a jump in their positions: what stood far away is read like what stands near."""
FARTHEST = 30_000
OTHER_WEIGHT = 0.1
"""Of the tokens that the user writes, against the replies'."""


class WordBatches:
    """Batches of dialogs of about the same length, and the loss of each."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, dialogs: WordDialogs, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dialogs = dialogs
        self._dice = random.Random(f"word-batches/{seed}")
        self._vocabulary = len(tokenizer)
        self._batches = self._draw()

    def loss(self, model: Qwen3ForCausalLM) -> Tensor:
        """The loss of the next batch."""
        kind = self._dice.random()
        if kind < REPEATED + PAIRED:
            batch = [self._repetition() if kind < REPEATED else self._pairs() for _ in range(TOKENS // 64)]
        else:
            batch = next(self._batches)
        gap = None
        if self._dice.random() < APART:
            shortest = min(len(example.ids) for example in batch)
            gap = self._dice.randrange(1, shortest // 2), int(FARTHEST ** self._dice.random())
        return loss_of(model, batch, gap=gap)

    def _draw(self) -> Iterator[list[Example]]:
        while True:
            drawn = (self._dialogs.draw() for _ in range(POOL))
            pool = [from_dialog(self._renderer, dialog.messages, tools=dialog.tools) for dialog in drawn]
            batches = in_batches(pool, TOKENS)
            self._dice.shuffle(batches)
            yield from batches

    def _repetition(self, length: int = 64) -> Example:
        period = self._dice.sample(range(self._vocabulary), self._dice.randint(4, length // 2))
        ids = (period * length)[:length]
        return Example(ids=ids, is_reply=[at >= len(period) for at in range(length)])

    def _pairs(self, length: int = 64) -> Example:
        """A key, a sign that is the same for all, a value: sure for a key that was there before."""
        dice = self._dice
        sign, end, *tokens = dice.sample(range(self._vocabulary), 2 + 2 * dice.randint(2, 8))
        rows = list(zip(tokens[::2], tokens[1::2], strict=True))
        ids: list[int] = []
        sure: list[bool] = []
        while len(ids) < length:
            again = bool(ids)
            for key, value in dice.sample(rows, len(rows)):
                ids += [key, sign, value, end]
                sure += [False, False, again, False]
        return Example(ids=ids[:length], is_reply=sure[:length])


def in_batches(examples: Sequence[Example], tokens: int) -> list[list[Example]]:
    """The examples by length, the shortest first, in batches of at most so many tokens or of one example."""
    batches, batch = [], list[Example]()
    for example in sorted(examples, key=lambda example: len(example.ids)):
        if batch and len(example.ids) * (len(batch) + 1) > tokens:
            batches.append(batch)
            batch = []
        batch.append(example)
    return [*batches, batch]


def loss_of(model: Qwen3ForCausalLM, examples: Sequence[Example], *, gap: tuple[int, int] | None) -> Tensor:
    """Mean loss of the replies and, little weighted, the rest. `gap`: (column, positions that it jumps)."""
    ids_BT, reply_BT, real_BT = padded(examples)
    positions = torch.arange(ids_BT.shape[1])
    if gap:
        positions[gap[0] :] += gap[1]
    hidden_BTE = model.model(input_ids=ids_BT, position_ids=positions[None]).last_hidden_state[:, :-1]
    real, reply = real_BT[:, 1:], reply_BT[:, 1:]
    losses = F.cross_entropy(model.lm_head(hidden_BTE[real]), ids_BT[:, 1:][real], reduction="none")
    mine = reply[real]
    return losses[mine].mean() + (OTHER_WEIGHT * losses[~mine].mean() if not mine.all() else 0.0)


@torch.inference_mode()
def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    dialogs: WordDialogs,
    family: str,
    count: int,
    *,
    filler: int = 0,
    first_reply: bool = False,
) -> float:
    """The share of dialogs whose every reply is right when each token is the likeliest one.

    Of dialogs that have one right answer only; about `filler` tokens about other words stand before each.
    `first_reply`: no later reply counts.
    """
    renderer = create_nano_renderer(tokenizer)
    drawn: list[Dialog] = []
    while len(drawn) < count:
        dialog = dialogs.draw(family)
        if dialog.sure and dialog.family == family:
            drawn.append(dialog)
    examples = []
    for dialog in drawn:
        messages = _behind_filler(dialog, dialogs, filler) if filler else dialog.messages
        if first_reply:
            roles = [message["role"] for message in messages]
            messages = messages[: roles.index("assistant") + 1]
        examples.append(from_dialog(renderer, messages, tools=dialog.tools))
    wrong = 0
    for batch in in_batches(examples, EVALUATED_TOKENS):
        ids_BT, reply_BT, _ = padded(batch)
        asked = reply_BT[:, 1:]
        hidden = model.model(input_ids=ids_BT).last_hidden_state[:, :-1][asked]
        missed = torch.zeros_like(asked)
        missed[asked] = model.lm_head(hidden).argmax(-1) != ids_BT[:, 1:][asked]
        wrong += int(missed.any(dim=1).sum())
    return 1 - wrong / count


def _behind_filler(dialog: Dialog, dialogs: WordDialogs, tokens: int) -> list[dict[str, Any]]:
    """The dialog's messages, the system prompt of which begins with sentences about other words."""
    first, *others = dialog.messages
    told = set(re.findall("[A-Za-z]+", " ".join(message["content"] for message in dialog.messages)))
    told &= set(CONTENT)
    sentences = (dialogs.noise().split(" ") for _ in range(tokens // 8))
    text = " ".join(word for sentence in sentences for word in sentence if word.strip(".!:,") not in told)
    system = f"\n{first['content']}" if first["role"] == "system" else ""
    return [{"role": "system", "content": text + system}, *(others if system else dialog.messages)]
