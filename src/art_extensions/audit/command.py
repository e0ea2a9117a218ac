"""`art audit-model`, with its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli.model_verbs import readable_errors
from art.errors import require_extra


def audit_model(
    name: Annotated[str, typer.Argument(help="The model: art/nano-games, a folder or a hub name.")],
    device: Annotated[str, typer.Option(help="The device: auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="The precision: auto, float32 or bfloat16.")] = "auto",
    json_file: Annotated[Path | None, typer.Option(help="Also write the verdicts to this file.")] = None,
) -> None:
    """Check whether a model can be trained: chat format, LoRA targets, packing, parity, checkpoints.

    Loads the model in the trainer and in the builtin engine, and compares them. Exit code 1 when a check
    fails.
    """
    with readable_errors():
        require_extra("local", "art audit-model")
    from art_extensions.audit.audit_run import audit

    raise typer.Exit(audit(name, device=device, dtype=dtype, json_file=json_file))
