"""`examples/nano_art.py`, the whole algorithm in one file: its gradient is the library's, and it learns."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
import types
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_policies import MODEL, accumulate_gradient, exact_norm
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.environments.tasks import tic_tac_toe
from art.training.attention.interface import NAME, register
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec

PROGRAM = Path(__file__).parents[2] / "examples" / "nano_art.py"
MOST_LINES = 400


@pytest.fixture(scope="module")
def nano() -> Any:
    return SimpleNamespace(**run_path(str(PROGRAM)))


def tokenizer_of(nano: Any) -> Tokenizer:
    return Tokenizer.from_file(str(nano.NANO_GAMES / "tokenizer.json"))


def test_it_is_one_short_file_without_the_library() -> None:
    source = PROGRAM.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    imported = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.partition(".")[0] == "art"}
    assert source.count("\n") <= MOST_LINES


def test_its_game_is_that_of_the_task(nano: Any) -> None:
    game, task = nano.Game("any"), tic_tac_toe.TicTacToe(0)
    game.dice = task._random
    opening = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in task.opening)
    assert nano.SYSTEM + nano.user(game.shown()) == opening
    state = task._random.getstate()
    for cell in ("B2", "A1", "C3", "A3", "C1", "B1", "B3", "A2", "C2"):
        task._random.setstate(state)
        theirs = task.reply({"role": "assistant", "content": cell})
        task._random.setstate(state)
        told = game.reply(cell)
        state = task._random.getstate()
        assert (game.result != "") == task.done
        if task.done:
            assert nano.REWARDS[game.result] == task.reward
            return
        assert told == theirs[0]["content"]
    raise AssertionError("the game did not end")


def played(nano: Any, model: Any, groups: int, size: int) -> list[list[Any]]:
    """Groups of games with different rewards, but for the last one, whose rewards are equal."""
    dice = torch.Generator().manual_seed(1)
    found: list[list[Any]] = []
    while len(found) < groups:
        games = [nano.Game(f"{len(found)}/{number}") for number in range(size)]
        group = nano.play(model, tokenizer_of(nano), games, dice)
        for rollout, result in zip(group, ["won", "lost", "draw", "invalid"], strict=False):
            rollout.result = "lost" if len(found) == groups - 1 else result
        found.append(group)
    return found


def rows_of(groups: list[list[Any]]) -> list[GroupRow]:
    """The same games as the ledger has them: a sample for each turn."""

    def samples(rollout: Any, name: str) -> list[SampleRow]:
        starts = [at for at in rollout.sampled if at - 1 not in rollout.sampled]
        made = []
        for turn, (start, after) in enumerate(pairwise([*starts, len(rollout.ids)])):
            indices = [at for at in rollout.sampled if start <= at < after]
            made.append(
                SampleRow(
                    sample_id=f"{name}.{turn}",
                    prompt_ids=rollout.ids[:start],
                    completion_ids=[rollout.ids[at] for at in indices],
                    completion_logprobs=[rollout.sampled[at] for at in indices],
                )
            )
        return made

    return [
        GroupRow(
            rollouts=[
                RolloutRow(rollout=f"{g}.{n}", reward=one.reward, samples=samples(one, f"{g}.{n}"))
                for n, one in enumerate(group)
            ]
        )
        for g, group in enumerate(groups)
    ]


def library(nano: Any, model: Any) -> Trainer:
    """The library's trainer of the same base with the same LoRA, norms in its own precision."""
    register()
    base = AutoModelForCausalLM.from_pretrained(
        nano.NANO_GAMES, attn_implementation=NAME, dtype=torch.float64
    )
    for module in base.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = types.MethodType(exact_norm, module)
    made = Trainer(Policy(base, name="art/nano-games"), token_budget=64)
    made.open(MODEL, LoraSpec(r=16, alpha=32), seed=0)
    with torch.no_grad():
        for name, parameter in made.parameters(MODEL).items():
            parameter.copy_(same_in(model, name))
    return made


def same_in(model: Any, name: str) -> torch.Tensor:
    """Returns the one file's tensor of a parameter that PEFT names."""
    layer = re.search(r"(model\.layers\..*_proj)\.lora_([AB])", name)
    assert layer is not None, name
    pair: tuple[torch.Tensor, torch.Tensor] = model.lora[f"{layer[1]}.weight"]
    return pair["AB".index(layer[2])]


@pytest.mark.slow
def test_its_gradient_is_the_librarys(nano: Any) -> None:
    model = nano.Qwen3(nano.NANO_GAMES, seed=3)
    with torch.no_grad():
        for one in model.trained:
            one.add_(0.02 * torch.randn(one.shape, generator=torch.Generator().manual_seed(len(one))))
    groups = played(nano, model, groups=4, size=4)
    model.weights = {name: one.double() for name, one in model.weights.items()}
    model.lora = {
        name: tuple(one.detach().double().requires_grad_() for one in pair)
        for name, pair in model.lora.items()
    }
    nano.add_gradient(model, groups)
    made = library(nano, model)
    accumulate_gradient(made, rows_of(groups), Algorithm())
    parameters = made.parameters(MODEL)
    ours, theirs = (
        torch.cat([one.grad.flatten() for one in tensors])  # type: ignore[union-attr]
        for tensors in ([same_in(model, name) for name in parameters], parameters.values())
    )
    difference = float((ours - theirs).norm() / theirs.norm())
    assert difference <= 1e-6


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    """The mean reward of the last steps is above that of the first, by three standard errors."""
    command = [sys.executable, str(PROGRAM), "--steps", "16", "--held-out", "16"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    rewards = [float(one) for one in re.findall(r"reward (-?[\d.]+)", done.stdout)]
    assert len(rewards) == 16
    error = 0.45 * math.sqrt(1 / (4 * 128) + 1 / (6 * 128))  # 0.45: the deviation of a game's reward at first
    assert fmean(rewards[-6:]) - fmean(rewards[:4]) >= 3 * error, done.stdout
