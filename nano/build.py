"""Build a nano model from nothing: tokenizer, staged training with gates, evaluation, model card.

    python -m nano.build --model nano-games                     into the package, as it ships
    python -m nano.build --model nano-tools --seed 1 --output /tmp/try
    python -m nano.build --model nano-words                     half an hour of one core
    python -m nano.build --model nano-games --smoke --output /tmp/try    a few steps of all stages, no gates

One thread, seeded, deterministic: two builds on one machine give identical files. It prints what each gate
measured and fails when a stage does not pass its gate within its limit of steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from art.engine import nano_models
from nano.card import write_card
from nano.model import MAX_POSITIONS, SIZES, new_model, rounded, save_model, set_up_torch, spread_rows
from nano.recipes import RECIPES
from nano.tokenizer import save_tokenizer, train_tokenizer
from nano.train import GateError, train

PACKAGE = Path(nano_models.__file__).parent


def build(name: str, *, seed: int, output: Path, smoke: bool = False) -> Path:
    """Write the model `name` to the folder `output`;

    raises GateError and writes nothing if a gate is not passed.
    """
    recipe = RECIPES[name]
    set_up_torch(seed)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        positions = SIZES[name].get("max_position_embeddings", MAX_POSITIONS)
        tokenizer = save_tokenizer(
            train_tokenizer(recipe.pattern, list(recipe.texts)), folder, max_length=positions
        )
        model = new_model(name, tokenizer)
        print(
            f"{name}: {model.num_parameters():,} parameters, {len(tokenizer)} tokens, seed {seed}", flush=True
        )
        train(model, recipe.stages(tokenizer, seed), smoke=smoke)
        if not smoke:
            spread_rows(model)
        save_model(model, folder)
        write_card(name, rounded(model), tokenizer, folder, seed=seed, count=16 if smoke else 1024)
        output.mkdir(parents=True, exist_ok=True)
        for file in sorted(folder.iterdir()):
            (output / file.name).write_bytes(file.read_bytes())
    return output


def main() -> int:
    """Read the options, build, say where the model lies."""
    parser = argparse.ArgumentParser(description="Build a nano model from nothing.")
    parser.add_argument("--model", choices=sorted(RECIPES), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder to write (default: the package's)")
    parser.add_argument("--smoke", action="store_true", help="a few steps of each stage, no gates")
    options = parser.parse_args()
    if options.smoke and options.output is None:
        parser.error("--smoke makes no usable model: give --output, so that the package keeps its own")
    output = options.output or PACKAGE / options.model.replace("-", "_")
    started = time.monotonic()
    try:
        build(options.model, seed=options.seed, output=output, smoke=options.smoke)
    except GateError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {output} in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
