"""The model card: what the model is, how it was made, how well it does before reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from art.client.options.learning_rates import spelled_rate, starting_rate
from nano.play import measure
from nano.reading import accuracy
from nano.recipes import RECIPES, find_task, word_scores
from nano.words import WordDialogs

EVAL_SEED = 20_000
"""Stream of scenarios that no gate and no training dialog uses."""

FILLERS = {1000: 64, 4000: 16, 16_000: 4}
"""Tokens about other words before facts, and how many dialogs are measured so."""

CARD = """\
# art/{name}

{purpose}

- Architecture: Qwen3 (`Qwen3ForCausalLM`), {parameters:,} parameters: {layers} layers of width {width},
  {heads} query heads and {key_heads} key heads of {head_size}, tied embeddings, context of {context} tokens.
- Weights: bfloat16 safetensors, meant to be loaded in float32.
- Tokenizer: byte-level BPE with {vocabulary} tokens; any text can be encoded.
- Chat format: Qwen3's markers, one line per tool, no thinking blocks. `art/rendering/nano.py` describes
  it; the chat template in `tokenizer_config.json` yields the same ids.
- Learning rate to begin with, of a LoRA: {rate}.
- Made by `python -m nano.build --model {name} --seed {seed}`, from synthetic dialogs alone.

## What it was taught

{teaching}

It knows nothing else: it cannot hold a conversation, and to other prompts its replies are noise.

## How well it does before reinforcement learning

{skill}
"""

TASKS = """\
{count} attempts at the scenarios 0 to {last} of stream {stream}, on token level without a server,
computed in float32 from the shipped weights. Sampled: temperature 1. Greedy: always the likeliest token.
The standard error of a share near one half is {error:.1%}.

| task | measure | sampled | greedy |
|---|---|---|---|
{rows}

Shares of attempts, except `reward` (mean) and `turns` (mean number of replies)."""

FAMILIES = """\
Shares of {count} new dialogs in which every token of every reply is right when the likeliest is taken,
computed in float32 from the shipped weights. `say`: one thing or a few words. `facts`: up to six facts about
words, up to three questions. `odd facts`: the same with coined words and numbers. `tools`: a named tool of
any name with up to three arguments, the call and a sentence about its result; `the call`: that alone.
`list`: a list said again. `place`: the first, second or last item of a list. `... tokens before`: facts
behind a system prompt of that many tokens about other words.

| dialogs | right |
|---|---|
{rows}"""


def write_card(
    name: str,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    seed: int,
    count: int,
) -> None:
    """Measure `count` attempts at each task, sampled and greedy, and write README.md."""
    recipe, config = RECIPES[name], model.config
    skill = (
        _tasks(recipe.tasks, model, tokenizer, count) if recipe.tasks else _families(model, tokenizer, count)
    )
    print(skill, flush=True)
    card = CARD.format(
        name=name,
        purpose=recipe.purpose,
        teaching=recipe.teaching,
        parameters=model.num_parameters(),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        context=config.max_position_embeddings,
        vocabulary=len(tokenizer),
        rate=spelled_rate(starting_rate(f"art/{name}")),
        seed=seed,
        skill=skill,
    )
    (folder / "README.md").write_text(card)


def _tasks(
    tasks: Sequence[str], model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int
) -> str:
    rows = []
    for task_name in tasks:
        task = find_task(task_name)
        sampled = measure(model, tokenizer, task, count=count, seed=EVAL_SEED)
        greedy = measure(model, tokenizer, task, count=count, seed=EVAL_SEED, greedy=True)
        rows += [f"| {task_name} | {key} | {sampled[key]:.3f} | {greedy[key]:.3f} |" for key in sampled]
    last, error = count - 1, 0.5 / count**0.5
    return TASKS.format(count=count, last=last, stream=EVAL_SEED, error=error, rows="\n".join(rows))


def _families(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, count: int) -> str:
    scores = word_scores(model, tokenizer, count=count, seed=EVAL_SEED)
    for filler, few in FILLERS.items() if count >= 1000 else ():
        right = accuracy(model, tokenizer, WordDialogs(EVAL_SEED), "facts", few, filler=filler)
        scores[f"facts, {filler:,} tokens before ({few} dialogs)"] = right
    rows = "\n".join(f"| {name} | {score:.3f} |" for name, score in scores.items())
    return FAMILIES.format(count=count, rows=rows)
