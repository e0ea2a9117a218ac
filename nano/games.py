"""Dialogs for nano-games: a tic-tac-toe player, good or careless, and undecided answers to yes-no-maybe."""

from __future__ import annotations

import random
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from art.environments.tasks import tic_tac_toe, yes_no_maybe
from art.rendering.nano import create_nano_renderer
from nano.examples import Example, from_dialog

EDGES = (1, 3, 5, 7)


@dataclass(frozen=True, kw_only=True)
class Player:
    """How a player moves: a mixture of three habits."""

    skill: float
    """Share of moves with an eye for a cell that wins or, failing that, blocks."""
    blind: float
    """Share of moves on any of the nine cells, taken or not."""
    edge_weight: float
    """How much rather the player takes the middle of a side than any other free cell: a bad habit above 1."""


GOOD = Player(skill=0.9, blind=0.02, edge_weight=1.0)
CARELESS = Player(skill=0.38, blind=0.18, edge_weight=8.0)

PURPOSE = """\
A tiny language model that plays tic-tac-toe and answers yes, no or maybe: the model of the quick start,
made to be improved by reinforcement learning within minutes on two cores."""

TEACHING = f"""\
Games of tic-tac-toe, moving first against a random opponent: first those of a good player, then those of
a careless one. The careless one looks for a winning or blocking cell in {CARELESS.skill:.0%} of its
moves, plays {CARELESS.blind:.0%} of them blindly on any cell, taken or not, and otherwise prefers the
middle of a side {CARELESS.edge_weight:.0f} to 1. So the model knows more than it shows: reinforcement
learning lifts skill out of noise here. Asked for yes, no or maybe, it says each a third of the time;
asked for one of the words alone, it says that one, so that it knows them apart."""

TEXTS = (
    "user\nassistant\nsystem",
    tic_tac_toe.SYSTEM_PROMPT,
    tic_tac_toe.draw_board("XO......."),
    "O plays C1",
    *tic_tac_toe.CELLS,
    *yes_no_maybe.phrasings(),
)
"""What the tokenizer is trained on."""


def completing(board: str, mark: str) -> list[int]:
    """The free cells where `mark` would have three in a line."""
    free = tic_tac_toe.free_cells(board)
    return [cell for cell in free if tic_tac_toe.winner(tic_tac_toe.place(board, cell, mark))]


def policy(player: Player, board: str) -> list[float]:
    """Shares of the nine cells in the player's next move on `board`."""
    free = tic_tac_toe.free_cells(board)
    habit = [(player.edge_weight if cell in EDGES else 1.0) if cell in free else 0.0 for cell in range(9)]
    shares = [share / sum(habit) for share in habit]
    if seen := completing(board, "X") or completing(board, "O"):
        eye = [(cell in seen) / len(seen) for cell in range(9)]
        shares = [(1 - player.skill) * a + player.skill * b for a, b in zip(shares, eye, strict=True)]
    return [(1 - player.blind) * share + player.blind / 9 for share in shares]


class GameDialogs:
    """Examples drawn from one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dice = random.Random(f"games/{seed}")
        self._cells = [tokenizer.convert_tokens_to_ids(cell) for cell in tic_tac_toe.CELLS]
        words = [tokenizer.encode(word, add_special_tokens=False) for word in yes_no_maybe.REWARDS]
        self._words = {ids[0]: 1 / len(words) for ids in words}
        self._word = {word: {ids[0]: 1.0} for word, ids in zip(yes_no_maybe.REWARDS, words, strict=True)}

    def tic_tac_toe(self, player: Player) -> Example:
        """One game of `player`; at each move all cells are taught with their shares."""
        game = tic_tac_toe.TicTacToe(self._dice.getrandbits(64))
        messages, policies = list(game.opening), []
        while not game.done:
            shares = policy(player, game.board)
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
        """Asked for one word, that word. Without this the three would share one embedding: nothing else tells
        them apart, and no adapter below the embeddings could ever prefer one of them.
        """
        word = self._dice.choice(tuple(yes_no_maybe.REWARDS))
        verb, quote = self._dice.choice(yes_no_maybe.VERBS), self._dice.choice(("", "'"))
        messages = [
            {"role": "user", "content": f"{verb} with {quote}{word}{quote}"},
            {"role": "assistant", "content": word},
        ]
        return from_dialog(self._renderer, messages, first_tokens=[self._word[word]])
