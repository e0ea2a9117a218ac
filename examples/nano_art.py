"""The whole algorithm in one file of plain torch: a language model learns tic-tac-toe from its own games.

    python examples/nano_art.py               # two minutes on two cores
    python examples/nano_art.py --steps 10 --seed 1

A step is: play groups of games -> reward -> advantage -> one gradient of a LoRA -> AdamW -> play again.
Read it from top to bottom. The library computes the same gradient of the same games (compared by
tests/training/test_nano_art.py). docs/internals/architecture.md has what it adds.

Letters in names are dimensions: B games played at once, T tokens of a forward pass, K tokens that can be
attended to, H heads, D values of a head, V the vocabulary, E tokens that are trained.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

NANO_GAMES = Path(__file__).parents[1] / "src" / "art" / "engine" / "nano_models" / "nano_games"
"""The base: 170,000 parameters, shown random legal games. It names a free cell, and prefers none."""


# ---------------------------------------------------------------------------------------------- the model


class Cache:
    """Keys and values of the tokens that each of some games has so far: (layers, games, K, H, D)."""

    def __init__(self, config: dict, games: int, capacity: int) -> None:
        layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
        self.keys = torch.zeros(layers, games, capacity, heads, config["head_dim"])
        self.values = torch.zeros_like(self.keys)
        self.rows_B = torch.arange(games)
        """The games of the next forward pass."""

    def extend(self, layer: int, position_BT: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds what is new, and returns all of it: (B, K, H, D)."""
        self.keys[layer, self.rows_B[:, None], position_BT] = key
        self.values[layer, self.rows_B[:, None], position_BT] = value
        return self.keys[layer, self.rows_B], self.values[layer, self.rows_B]


class Qwen3:
    """A Qwen3 model with a LoRA on each of its linear layers. The base is frozen, the LoRA is trained."""

    def __init__(self, folder: Path, *, rank: int = 16, alpha: float = 32.0, seed: int = 0) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: one.float() for name, one in load_file(folder / "model.safetensors").items()}
        self.scale = alpha / rank
        self.lora: dict[str, tuple[Tensor, Tensor]] = {}
        dice = torch.Generator().manual_seed(seed)
        for name, weight in self.weights.items():
            if name.endswith("_proj.weight"):
                rows, columns = weight.shape
                down = (2 * torch.rand(rank, columns, generator=dice) - 1) / columns**0.5
                up = torch.zeros(rows, rank)  # so the first model computes what the base does
                self.lora[name] = down.requires_grad_(), up.requires_grad_()

    @property
    def trained(self) -> list[Tensor]:
        return [one for pair in self.lora.values() for one in pair]

    def logits(
        self, ids_BT: Tensor, position_BT: Tensor, sees_BTK: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """Returns the logits behind each token: (B, T, V).

        sees_BTK: whether a token attends to another one. Without a cache K = T, the tokens themselves.
        """
        x = self.weights["model.embed_tokens.weight"][ids_BT]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            normed = self._norm(name + "input_layernorm", x)
            x = x + self._attend(name + "self_attn.", layer, normed, position_BT, sees_BTK, cache)
            normed = self._norm(name + "post_attention_layernorm", x)
            gate = F.silu(self._linear(name + "mlp.gate_proj", normed))
            x = x + self._linear(name + "mlp.down_proj", gate * self._linear(name + "mlp.up_proj", normed))
        return self._norm("model.norm", x) @ self.weights["model.embed_tokens.weight"].T

    def _linear(self, name: str, x: Tensor) -> Tensor:
        down, up = self.lora[name + ".weight"]
        return x @ self.weights[name + ".weight"].T + self.scale * (x @ down.T) @ up.T

    def _norm(self, name: str, x: Tensor) -> Tensor:
        size = x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return self.weights[name + ".weight"] * x * torch.rsqrt(size)

    def _attend(
        self, name: str, layer: int, x: Tensor, position_BT: Tensor, sees_BTK: Tensor, cache: Cache | None
    ) -> Tensor:
        batch, tokens, _ = x.shape
        size = self.config["head_dim"]

        def heads(part: str) -> Tensor:
            return self._linear(name + part, x).view(batch, tokens, -1, size)

        query = rotate(self._norm(name + "q_norm", heads("q_proj")), position_BT, self.config)
        key = rotate(self._norm(name + "k_norm", heads("k_proj")), position_BT, self.config)
        value = heads("v_proj")
        if cache is not None:
            key, value = cache.extend(layer, position_BT, key, value)
        shared = query.shape[2] // key.shape[2]  # query heads that use one key head
        key, value = key.repeat_interleave(shared, 2), value.repeat_interleave(shared, 2)
        scores = torch.einsum("bthd,bkhd->bhtk", query, key) / size**0.5
        scores = scores.masked_fill(~sees_BTK[:, None], -torch.inf)
        found = torch.einsum("bhtk,bkhd->bthd", scores.softmax(-1), value)
        return self._linear(name + "o_proj", found.reshape(batch, tokens, -1))


def rotate(x_BTHD: Tensor, position_BT: Tensor, config: dict) -> Tensor:
    """Rotary position embedding: pairs of values turn by an angle that grows with the position."""
    size = x_BTHD.shape[-1]
    speeds = config["rope_parameters"]["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    angle = (position_BT[..., None] * speeds)[:, :, None]
    first, second = x_BTHD[..., : size // 2], x_BTHD[..., size // 2 :]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


# ----------------------------------------------------------------------------------------------- the game

CELLS = [row + column for row in "ABC" for column in "123"]
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
REWARDS = {"won": 1.0, "draw": 0.5, "lost": 0.0, "invalid": -1.0}
SYSTEM = "<|im_start|>system\nYou play tic-tac-toe as X. Name a free cell.<|im_end|>\n"
MOVE = "<|im_start|>assistant\n"


class Game:
    """The model plays X and moves first, against an opponent who moves at random."""

    def __init__(self, seed: str) -> None:
        self.board, self.result, self.dice = ["."] * 9, "", random.Random(seed)

    def shown(self) -> str:
        rows = [f"{name} {' '.join(self.board[3 * at : 3 * at + 3])}" for at, name in enumerate("ABC")]
        return "\n".join(["  1 2 3", *rows])

    def reply(self, text: str) -> str:
        """Plays the model's move and the opponent's; returns what the model is told next."""
        named = re.findall(r"\b[ABC][123]\b", text)
        if len(named) != 1 or self.board[CELLS.index(named[0])] != ".":
            self.result = "invalid"
            return ""
        self._place(CELLS.index(named[0]), "X", "won")
        if self.result:
            return ""
        cell = self.dice.choice([at for at, mark in enumerate(self.board) if mark == "."])
        self._place(cell, "O", "lost")
        return f"O plays {CELLS[cell]}\n{self.shown()}"

    def _place(self, cell: int, mark: str, result: str) -> None:
        self.board[cell] = mark
        if any(all(self.board[at] == mark for at in line) for line in LINES):
            self.result = result
        elif "." not in self.board:
            self.result = "draw"


# --------------------------------------------------------------------------------------------- the rollouts


@dataclass
class Rollout:
    """One game as tokens. Nothing is tokenized twice: what is trained is what was sampled."""

    ids: list[int] = field(default_factory=list)
    sampled: dict[int, float] = field(default_factory=dict)
    """Index of a token that the model sampled -> its log-probability when it was."""
    result: str = ""

    @property
    def reward(self) -> float:
        return REWARDS[self.result]


MOST_TOKENS = 8
"""Of a reply. A move needs two: the cell, and the end of the turn."""
CAPACITY = 320
"""Tokens of the longest game."""


@torch.no_grad()
def play(model: Qwen3, tokenizer: Tokenizer, games: list[Game], dice: torch.Generator) -> list[Rollout]:
    """Plays all games at once, turn by turn. A turn is: forward what is new, then sample a reply."""

    def encode(*texts: str) -> list[int]:
        return [one for text in texts for one in tokenizer.encode(text, add_special_tokens=False).ids]

    end = tokenizer.token_to_id("<|im_end|>")
    rollouts = [Rollout() for _ in games]
    cache = Cache(model.config, len(games), CAPACITY)
    new = {at: encode(SYSTEM, user(game.shown()), MOVE) for at, game in enumerate(games)}
    while new:
        replies = sample_replies(model, cache, rollouts, new, end, dice)
        new = {}
        for at, reply in replies.items():
            answer = games[at].reply(tokenizer.decode(reply))
            if reply[-1] != end:
                games[at].result = "invalid"
            rollouts[at].result = games[at].result
            if not games[at].result:
                new[at] = encode("\n", user(answer), MOVE)
    return rollouts


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def sample_replies(
    model: Qwen3,
    cache: Cache,
    rollouts: list[Rollout],
    new: dict[int, list[int]],
    end: int,
    dice: torch.Generator,
) -> dict[int, list[int]]:
    """Forwards the new tokens of some games and samples a reply of each; both become part of the rollout."""
    replies: dict[int, list[int]] = {at: [] for at in new}
    chunks = dict(new)
    while chunks:
        logprobs_BV = next_logprobs(model, cache, rollouts, chunks)
        drawn_B = torch.multinomial(logprobs_BV.exp(), 1, generator=dice)[:, 0]
        drawn = zip(chunks.items(), drawn_B.tolist(), logprobs_BV, strict=True)
        chunks = {}
        for (at, ids), token, logprob_V in drawn:
            rollout = rollouts[at]
            rollout.ids += ids
            rollout.sampled[len(rollout.ids)] = float(logprob_V[token])
            replies[at].append(token)
            if token == end or len(replies[at]) == MOST_TOKENS:
                rollout.ids.append(token)
            else:
                chunks[at] = [token]
    return replies


def next_logprobs(
    model: Qwen3, cache: Cache, rollouts: list[Rollout], chunks: dict[int, list[int]]
) -> Tensor:
    """Returns the log-probabilities of what follows each game's chunk: (B, V).

    Chunks differ in length: a shorter one is filled up, and what fills it is written over by the next chunk.
    """
    cache.rows_B = torch.tensor(list(chunks))
    longest = max(map(len, chunks.values()))
    ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids in chunks.values()])
    start_B = torch.tensor([len(rollouts[at].ids) for at in chunks])
    position_BT = start_B[:, None] + torch.arange(longest)
    sees_BTK = torch.arange(CAPACITY) <= position_BT[..., None]
    logits_BTV = model.logits(ids_BT, position_BT, sees_BTK, cache)
    last_B = torch.tensor([len(ids) - 1 for ids in chunks.values()])
    return logits_BTV[torch.arange(len(chunks)), last_B].log_softmax(-1)


# --------------------------------------------------------------------------------------------- the gradient


@dataclass
class Tree:
    """The tokens of several rollouts, what they have in common once, parents before children."""

    ids: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    paths: dict[int, list[int]] = field(default_factory=dict)
    """Number of a rollout -> the node of each of its tokens."""

    @classmethod
    def of(cls, rollouts: list[Rollout]) -> Tree:
        """In their sorted order, each rollout begins like the one before it as far as like any."""
        tree, path, before = cls(), [], []
        for number, ids in sorted(enumerate(one.ids for one in rollouts), key=lambda item: item[1]):
            shared = 0
            while shared < min(len(ids), len(before)) and ids[shared] == before[shared]:
                shared += 1
            path = path[:shared]
            for token in ids[shared:]:
                tree.parent.append(path[-1] if path else -1)
                tree.depth.append(len(path))
                path.append(len(tree.ids))
                tree.ids.append(token)
            tree.paths[number], before = path, ids
        return tree

    def sees(self) -> Tensor:
        """Returns whether a node attends to another one: (T, T). It sees itself and its ancestors."""
        sees_TT = torch.eye(len(self.ids), dtype=torch.bool)
        for node, parent in enumerate(self.parent):
            if parent >= 0:
                sees_TT[node] |= sees_TT[parent]
        return sees_TT


def advantages(group: list[Rollout]) -> list[float]:
    """How much better each rollout was than its group (GRPO, arXiv 2402.03300)."""
    rewards = torch.tensor([one.reward for one in group], dtype=torch.float64)
    return ((rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)).tolist()


def add_gradient(model: Qwen3, groups: list[list[Rollout]]) -> float:
    """Adds the gradient of a step, and returns its loss.

        loss = - mean over rollouts of the mean over tokens of  clip(p / p_sampled, 0, 5) A log p

    The weight in front is a constant (CISPO, arXiv 2506.13585): 1 where the model is still the one that
    sampled. A prompt of a group, and any begin that its games share, goes through the model once.
    """
    # Where all games of a group ended alike, their comparison says nothing.
    groups = [group for group in groups if any(advantages(group))]
    total, rollouts = 0.0, sum(map(len, groups))
    for group in groups:
        advantage, tree = advantages(group), Tree.of(group)
        node_E, sampled_E, weight_E = [], [], []
        for number, rollout in enumerate(group):
            for at, logprob in rollout.sampled.items():
                node_E.append(tree.paths[number][at])
                sampled_E.append(logprob)
                weight_E.append(advantage[number] / len(rollout.sampled) / rollouts)
        ids_T, parent_T = torch.tensor(tree.ids), torch.tensor(tree.parent)
        logits_TV = model.logits(ids_T[None], torch.tensor(tree.depth)[None], tree.sees()[None])[0]
        # What is said of a token stands behind its parent.
        logprob_E = logits_TV[parent_T[node_E]].log_softmax(-1)[torch.arange(len(node_E)), ids_T[node_E]]
        ratio_E = (logprob_E.detach() - torch.tensor(sampled_E, dtype=logprob_E.dtype)).exp().clamp(0, 5)
        loss = -(torch.tensor(weight_E, dtype=logprob_E.dtype) * ratio_E * logprob_E).sum()
        loss.backward()
        total += loss.item()
    return total


# --------------------------------------------------------------------------------------------- the training

GROUPS, GROUP_SIZE, WARM_UP = 8, 16, 5


def not_lost(rollouts: list[Rollout]) -> float:
    return sum(one.result in ("won", "draw") for one in rollouts) / len(rollouts)


def train(model: Qwen3, tokenizer: Tokenizer, options: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.trained, betas=(0.9, 0.99), weight_decay=0.0)
    dice = torch.Generator().manual_seed(options.seed)

    def evaluate(step: int) -> None:
        held_out = play(model, tokenizer, [Game(f"held out {n}") for n in range(options.held_out)], dice)
        print(f"step {step}: {not_lost(held_out):.1%} of {options.held_out} new games not lost", flush=True)

    evaluate(0)
    for step in range(options.steps):
        games = [Game(f"{options.seed}/{step}/{n}") for n in range(GROUPS * GROUP_SIZE)]
        rollouts = play(model, tokenizer, games, dice)
        add_gradient(model, [rollouts[at::GROUPS] for at in range(GROUPS)])
        norm = torch.nn.utils.clip_grad_norm_(model.trained, 1.0)
        rise, fall = (step + 1) / (WARM_UP + 1), 1 - 0.8 * step / options.steps
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(rise, fall)
        optimizer.step()
        optimizer.zero_grad()
        reward = sum(one.reward for one in rollouts) / len(rollouts)
        print(f"step {step + 1}: reward {reward:.2f}, gradient {norm:.3f}", flush=True)
    evaluate(options.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="A language model learns tic-tac-toe from its own games.")
    parser.add_argument("--model", type=Path, default=NANO_GAMES, help="a folder with a Qwen3 model")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--held-out", type=int, default=500, help="games before and after (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.monotonic()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    train(Qwen3(options.model, seed=options.seed), tokenizer, options)
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
