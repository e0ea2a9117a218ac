"""Random sequences over and over: a model that continues them has learned to copy."""

from __future__ import annotations

import random
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

from nano.examples import Example


class Repetitions:
    """Of words that the dialogs copy, each of them one token. Draws from the generator that it is given."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, words: Iterable[str], dice: random.Random) -> None:
        self._content = [tokenizer.encode(word, add_special_tokens=False)[0] for word in words]
        self._dice = dice

    def draw(self, length: int = 64) -> Example:
        """A random sequence of the words, over and over: what comes next stands one period back."""
        period = self._dice.sample(self._content, self._dice.randint(4, 19))
        ids = (period * length)[:length]
        return Example(ids=ids, is_reply=[at >= len(period) for at in range(length)])
