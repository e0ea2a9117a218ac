"""`art doctor`, with its options."""

from __future__ import annotations

from typing import Annotated

import typer

from art.cli.model_verbs import readable_errors
from art.errors import require_extra


def doctor(
    base_model: Annotated[str, typer.Option(help="The model of the small training step.")] = "art/nano",
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Only compute the memory that training this model needs: a hub name, a folder, or a size "
            "such as 8B.",
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="With --plan: the LoRA's rank.")] = 16,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --plan: tokens of prompt and completion. Default: 8192, or the model's most."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="With --plan: builtin or vllm.")] = "builtin",
    bits: Annotated[int, typer.Option(help="With --plan: bits of a base weight: 16, 8 or 4.")] = 16,
) -> None:
    """Check this installation: versions, memory, and one complete small training step.

    Generates, trains, publishes and generates again through the real server, and prints a remedy for each
    finding. `--plan MODEL` computes the VRAM that training a model needs, before you rent a GPU.
    """
    from art_extensions.doctor.examination import examine, show_memory_plan

    if plan is None:
        raise typer.Exit(examine(base_model))
    with readable_errors():
        require_extra("local", "art doctor --plan")
    raise typer.Exit(show_memory_plan(plan, rank=rank, context=context, engine=engine, bits=bits))
