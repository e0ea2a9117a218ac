"""Dialogs for nano-games: random legal games of tic-tac-toe, and undecided answers to yes-no-maybe."""

from __future__ import annotations

import random

from transformers import PreTrainedTokenizerFast

from art.environments.tasks import tic_tac_toe, yes_no_maybe
from art.rendering.nano import create_nano_renderer
from nano.examples import Example, from_dialog

PURPOSE = """\
A tiny language model that plays tic-tac-toe and answers yes, no or maybe: the model of the quick start,
made to be improved by reinforcement learning within minutes on two cores."""

TEACHING = """\
Games of tic-tac-toe between two players who both choose at random among the free cells, each cell as
likely. So it was taught the form of the game: to read the board, and to name a free cell. It was shown
no skill: it was never taught to win, to block, or that one move is better than another. What it wins
after reinforcement learning, reinforcement learning found. Asked for yes, no or maybe, it says each a
third of the time; asked for one of the words alone, it says that one."""

TEXTS = (
    "user\nassistant\nsystem",
    tic_tac_toe.SYSTEM_PROMPT,
    tic_tac_toe.draw_board("XO......."),
    "O plays C1",
    *tic_tac_toe.CELLS,
    *yes_no_maybe.phrasings(),
)
"""What the tokenizer is trained on."""


def policy(board: str) -> list[float]:
    """Shares of the nine cells in the next move on `board`: each free cell is as likely."""
    free = tic_tac_toe.free_cells(board)
    return [(cell in free) / len(free) for cell in range(9)]


class GameDialogs:
    """Examples drawn from one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dice = random.Random(f"games/{seed}")
        self._cells = [tokenizer.convert_tokens_to_ids(cell) for cell in tic_tac_toe.CELLS]
        words = [tokenizer.encode(word, add_special_tokens=False) for word in yes_no_maybe.REWARDS]
        self._words = {ids[0]: 1 / len(words) for ids in words}
        self._word = {word: {ids[0]: 1.0} for word, ids in zip(yes_no_maybe.REWARDS, words, strict=True)}

    def tic_tac_toe(self) -> Example:
        """One game at random; at each move all cells are taught with their shares."""
        game = tic_tac_toe.TicTacToe(self._dice.getrandbits(64))
        messages, policies = list(game.opening), []
        while not game.done:
            shares = policy(game.board)
            cell = self._dice.choices(range(9), shares)[0]
            policies.append(dict(zip(self._cells, shares, strict=True)))
            messages.append({"role": "assistant", "content": tic_tac_toe.CELLS[cell]})
            messages += game.reply(messages[-1])
        return from_dialog(self._renderer, messages, first_tokens=policies)

    def yes_no_maybe(self) -> Example:
        """One question; each of the three words is as likely."""
        question = {"role": "user", "content": self._dice.choice(yes_no_maybe.phrasings())}
        answer = {"role": "assistant", "content": self._dice.choice(tuple(yes_no_maybe.REWARDS))}
        return from_dialog(self._renderer, [question, answer], first_tokens=[self._words])

    def one_word(self) -> Example:
        """Asked for one word, that word. Nothing else tells the three apart."""
        word = self._dice.choice(tuple(yes_no_maybe.REWARDS))
        verb, quote = self._dice.choice(yes_no_maybe.VERBS), self._dice.choice(("", "'"))
        messages = [
            {"role": "user", "content": f"{verb} with {quote}{word}{quote}"},
            {"role": "assistant", "content": word},
        ]
        return from_dialog(self._renderer, messages, first_tokens=[self._word[word]])
