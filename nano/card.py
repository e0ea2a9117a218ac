"""The model card: what the model is, how it was made, how well it does before reinforcement learning."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from nano.play import measure
from nano.recipes import RECIPES, find_task

EVAL_SEED = 20_000
"""Stream of scenarios that no gate and no training dialog uses."""

CARD = """\
# art/{name}

{purpose}

- Architecture: Qwen3 (`Qwen3ForCausalLM`), {parameters:,} parameters: {layers} layers of width {width},
  {heads} query heads and {key_heads} key heads of {head_size}, tied embeddings, context of {context} tokens.
- Weights: bfloat16 safetensors, meant to be loaded in float32.
- Tokenizer: byte-level BPE with {vocabulary} tokens; any text can be encoded.
- Chat format: Qwen3's markers, one line per tool, no thinking blocks. `art/rendering/nano.py` describes
  it; the chat template in `tokenizer_config.json` yields the same ids.
- Made by `python -m nano.build --model {name} --seed {seed}`, from synthetic dialogs alone.

## What it was taught

{teaching}

It knows nothing else: it cannot hold a conversation, and to other prompts its replies are noise.

## How well it does before reinforcement learning

{count} attempts at the scenarios 0 to {last} of stream {stream}, on token level without a server,
computed in float32 from the shipped weights. Sampled: temperature 1. Greedy: always the likeliest token.
The standard error of a share near one half is {error:.1%}.

| task | measure | sampled | greedy |
|---|---|---|---|
{rows}

Shares of attempts, except `reward` (mean) and `turns` (mean number of replies).
"""


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
    rows = []
    for task_name in recipe.tasks:
        task = find_task(task_name)
        sampled = measure(model, tokenizer, task, count=count, seed=EVAL_SEED)
        greedy = measure(model, tokenizer, task, count=count, seed=EVAL_SEED, greedy=True)
        rows += [f"| {task_name} | {key} | {sampled[key]:.3f} | {greedy[key]:.3f} |" for key in sampled]
    print("\n".join(rows), flush=True)
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
        seed=seed,
        count=count,
        last=count - 1,
        stream=EVAL_SEED,
        error=0.5 / count**0.5,
        rows="\n".join(rows),
    )
    (folder / "README.md").write_text(card)
