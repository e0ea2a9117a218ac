"""What each nano model is taught, stage by stage, and the gate that ends each stage.

All are shown the form, and no skill: the player of games random legal games, the users of tools calls and
answers of which none is preferred. What reinforcement learning lifts must be there in their own attempts, so
a gate asks that some of them are right; another one, that the likeliest ones are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.environments import tasks
from art.environments.tasks import Task
from nano import games, tools, weather, words
from nano.examples import batch_loss
from nano.model import rounded
from nano.play import measure
from nano.reading import WordBatches, accuracy
from nano.tokenizer import GAMES_PATTERN, MCP_PATTERN, TOOLS_PATTERN, WORDS_PATTERN
from nano.train import Stage
from nano.vocabulary import HELD_OUT

GATE_SEED = 10_000
"""Stream of the scenarios that gates measure."""
MOST_SKILL = 0.4
"""The largest share of a tool user's attempts that may be right, sampled or greedily: it was shown none."""
WORD_GATES = {
    "say": 0.93, "facts": 0.97, "facts held out": 0.96, "tools": 0.7, "tools, the call": 0.87, "list": 0.87,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A nano model: `texts` train the tokenizer, `stages` the weights, `tasks` are what the card reports."""

    purpose: str
    teaching: str
    tasks: tuple[str, ...]
    pattern: str
    texts: tuple[str, ...]
    stages: Callable[[PreTrainedTokenizerFast, int], list[Stage]]


def games_stages(tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Stage]:
    """Random legal games of tic-tac-toe, undecided answers to yes-no-maybe: the form, and no skill."""
    dialogs = games.GameDialogs(tokenizer, seed)

    def loss(model: Qwen3ForCausalLM) -> Tensor:
        game = batch_loss(model, [dialogs.tic_tac_toe() for _ in range(32)], other_weight=1.0)
        words = [dialogs.yes_no_maybe() for _ in range(8)] + [dialogs.one_word() for _ in range(4)]
        return game + 0.3 * batch_loss(model, words, other_weight=0.1)

    def plays_legally(model: Qwen3ForCausalLM) -> tuple[bool, str]:
        sampled = _scores(model, tokenizer, "tic-tac-toe", greedy=False)
        greedy = _scores(model, tokenizer, "tic-tac-toe", greedy=True)
        words = _scores(model, tokenizer, "yes-no-maybe", greedy=False)
        legal = 1 - sampled["invalid"] / sampled["turns"]
        text = (
            f"legal moves {legal:.3f}, not lost {sampled['not_lost']:.3f} (greedy {greedy['not_lost']:.3f}), "
            f"yes {words['yes']:.2f} no {words['no']:.2f} maybe {words['maybe']:.2f}"
        )
        undecided = all(0.25 <= words[word] <= 0.42 for word in ("yes", "no", "maybe"))
        return undecided and legal >= 0.99, text

    return [
        Stage(
            name="play legally",
            loss=loss,
            gate=plays_legally,
            learning_rate=4e-3,
            final_rate=5e-4,
            decay_steps=1000,
            min_steps=1000,
            max_steps=2000,
            check_every=100,
        ),
    ]


def tools_stages(tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Stage]:
    """Copying, then an agent with the tools of the mail task that prefers nothing."""
    dialogs = tools.ToolDialogs(tokenizer, seed)

    def repeat_loss(model: Qwen3ForCausalLM) -> Tensor:
        return batch_loss(model, [dialogs.repetitions.draw() for _ in range(48)], other_weight=0.0)

    def mail_loss(model: Qwen3ForCausalLM) -> Tensor:
        return batch_loss(model, [dialogs.mail() for _ in range(16)], other_weight=0.3)

    def copies(model: Qwen3ForCausalLM) -> tuple[bool, str]:
        loss = repeat_loss(model).item()
        return loss <= 0.25, f"copying loss {loss:.3f} nats"

    def knows_the_form(model: Qwen3ForCausalLM) -> tuple[bool, str]:
        sampled = _scores(model, tokenizer, "mail", greedy=False)
        greedy = _scores(model, tokenizer, "mail", greedy=True)
        text = f"right {sampled['right']:.3f} (greedy {greedy['right']:.3f}), broken {sampled['broken']:.3f}"
        return sampled["right"] >= 0.11 and max(sampled["right"], greedy["right"]) <= MOST_SKILL, text

    return [
        Stage(
            name="copy",
            loss=repeat_loss,
            gate=copies,
            learning_rate=3e-3,
            final_rate=3e-3,
            decay_steps=1,
            min_steps=150,
            max_steps=1000,
            check_every=25,
        ),
        Stage(
            name="use the tools",
            loss=mail_loss,
            gate=knows_the_form,
            learning_rate=3e-3,
            final_rate=3e-4,
            decay_steps=900,
            min_steps=900,
            max_steps=2000,
            check_every=50,
        ),
    ]


def mcp_stages(tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Stage]:
    """Copying beside an agent with the tools of the weather server that prefers nothing, then that alone.

    Copying alone, of these few words, stays at a plateau for a thousand steps; beside dialogs it does not.
    """
    dialogs = weather.WeatherDialogs(tokenizer, seed)

    def repeat_loss(model: Qwen3ForCausalLM) -> Tensor:
        return batch_loss(model, [dialogs.repetitions.draw() for _ in range(24)], other_weight=0.0)

    def use_loss(model: Qwen3ForCausalLM, count: int = 24) -> Tensor:
        return batch_loss(model, [dialogs.weather() for _ in range(count)], other_weight=0.3)

    def copies(model: Qwen3ForCausalLM) -> tuple[bool, str]:
        loss = repeat_loss(model).item()
        return loss <= 0.25, f"copying loss {loss:.3f} nats"

    def knows_the_form(model: Qwen3ForCausalLM) -> tuple[bool, str]:
        sampled = _scores(model, tokenizer, "weather", greedy=False)
        greedy = _scores(model, tokenizer, "weather", greedy=True)
        worst = min(sampled[kind] for kind in weather.PHRASINGS)
        skilled = max(sampled["right"], greedy["right"]) > MOST_SKILL
        text = f"{_told(sampled)}; right greedily {greedy['right']:.3f}"
        return sampled["right"] >= 0.13 and worst >= 0.03 and not skilled, text

    return [
        Stage(
            name="copy, and use the tools",
            loss=lambda model: 0.5 * repeat_loss(model) + use_loss(model, 16),
            gate=copies,
            learning_rate=3e-3,
            final_rate=3e-3,
            decay_steps=1,
            min_steps=200,
            max_steps=1500,
            check_every=25,
        ),
        Stage(
            name="use the tools",
            loss=use_loss,
            gate=knows_the_form,
            learning_rate=3e-3,
            final_rate=3e-4,
            decay_steps=1200,
            min_steps=400,
            max_steps=2000,
            check_every=200,
        ),
    ]


def words_stages(tokenizer: PreTrainedTokenizerFast, seed: int) -> list[Stage]:
    """Lookups among few facts first, then everything, then everything at a falling rate."""
    dialogs = words.WordDialogs(seed)
    batches = WordBatches(tokenizer, dialogs, seed)
    others = WordBatches(tokenizer, words.WordDialogs(seed + 1), seed + 1)

    def few_facts(model: Qwen3ForCausalLM) -> Tensor:
        dialogs.shares, dialogs.rows = words.FACTS_FIRST, (1, 2, 3)
        return batches.loss(model)

    def everything(model: Qwen3ForCausalLM) -> Tensor:
        dialogs.shares, dialogs.rows = words.SHARES, words.ROWS
        return batches.loss(model)

    def gate(least: dict[str, float]) -> Callable[[Qwen3ForCausalLM], tuple[bool, str]]:
        def passed(model: Qwen3ForCausalLM) -> tuple[bool, str]:
            scores = word_scores(model, tokenizer, count=400)
            text = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
            return all(scores[name] >= share for name, share in least.items()), text

        return passed

    return [
        Stage(
            name="look up",
            loss=few_facts,
            gate=gate({"facts": 0.7}),
            learning_rate=2e-3,
            final_rate=2e-3,
            decay_steps=1,
            min_steps=500,
            max_steps=1500,
            check_every=250,
            warmup_steps=50,
        ),
        Stage(
            name="follow",
            loss=everything,
            gate=gate({"facts": 0.95, "facts held out": 0.95}),
            learning_rate=2e-3,
            final_rate=1e-4,
            decay_steps=5500,
            min_steps=2500,
            max_steps=5500,
            check_every=500,
        ),
        Stage(
            name="settle",
            loss=others.loss,
            gate=gate(WORD_GATES),
            learning_rate=1.1e-3,
            final_rate=3e-5,
            decay_steps=1500,
            min_steps=1500,
            max_steps=2500,
            check_every=250,
            fresh=True,
        ),
    ]


def word_scores(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, *, count: int, seed: int = GATE_SEED
) -> dict[str, float]:
    """By family: the share of dialogs whose every reply is right, greedily."""
    model = rounded(model)
    scores = {
        family: accuracy(model, tokenizer, words.WordDialogs(seed), family, count)
        for family in ("say", "facts", "odd facts", "tools", "list", "place")
    }
    calls = accuracy(model, tokenizer, words.WordDialogs(seed), "tools", count, first_reply=True)
    held_out = words.WordDialogs(seed, known=HELD_OUT)
    found = accuracy(model, tokenizer, held_out, "facts", count)
    return {**scores, "tools, the call": calls, "facts held out": found}


def _told(scores: dict[str, float]) -> str:
    """Where in the chain of calls attempts at the weather task go wrong."""
    steps = ("right", "first_call", "last_call", "broken", *weather.PHRASINGS)
    return ", ".join(f"{name} {scores[name]:.3f}" for name in steps)


def find_task(name: str) -> Task:
    """A task that gates and cards measure: one of `art.environments.tasks`, or the weather server's."""
    return cast("Task", weather) if name == "weather" else tasks.find(name)


def _scores(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, task: str, *, greedy: bool
) -> dict[str, float]:
    return measure(rounded(model), tokenizer, find_task(task), count=1024, seed=GATE_SEED, greedy=greedy)


RECIPES = {
    "nano-games": Recipe(
        purpose=games.PURPOSE,
        teaching=games.TEACHING,
        tasks=("tic-tac-toe", "yes-no-maybe"),
        pattern=GAMES_PATTERN,
        texts=games.TEXTS,
        stages=games_stages,
    ),
    "nano-tools": Recipe(
        purpose=tools.PURPOSE,
        teaching=tools.TEACHING,
        tasks=("mail",),
        pattern=TOOLS_PATTERN,
        texts=tools.TEXTS,
        stages=tools_stages,
    ),
    "nano-mcp": Recipe(
        purpose=weather.PURPOSE,
        teaching=weather.TEACHING,
        tasks=("weather",),
        pattern=MCP_PATTERN,
        texts=weather.TEXTS,
        stages=mcp_stages,
    ),
    "nano-words": Recipe(
        purpose=words.PURPOSE,
        teaching=words.TEACHING,
        tasks=(),
        pattern=WORDS_PATTERN,
        texts=words.texts(),
        stages=words_stages,
    ),
}
