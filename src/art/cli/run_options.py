"""Options that the verbs which train for a while share: whose run it is, who is asked, what it may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BaseModel = Annotated[str, typer.Option(help="The model to train: a hub name, a folder, a built-in one.")]
Name = Annotated[str, typer.Option(help="The model's name; the same name goes on with its run.")]
Project = Annotated[str, typer.Option(help="The project's name.")]
Referee = Annotated[
    str | None, typer.Option(help="Compares before and after instead of the judge: provider/model.")
]
JudgeUrl = Annotated[
    str | None, typer.Option(help="Its address; key in ART_JUDGE_API_KEY. Default: the provider's own.")
]
GeneratorUrl = Annotated[
    str | None, typer.Option(help="Its address; key in ART_GENERATOR_API_KEY. Default: the provider's own.")
]
BudgetCalls = Annotated[int | None, typer.Option(min=1, help="Calls of all that are asked, at most.")]
BudgetTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of them, at most.")]
BudgetUsd = Annotated[float | None, typer.Option(help="US dollars for them, at most.")]
Seed = Annotated[int, typer.Option(help="Of the split, the order and the test attempts.")]
DataDir = Annotated[Path, typer.Option(help="Runs, models, and the answers that are kept.")]
JsonFile = Annotated[Path | None, typer.Option(help="Also write the report, as JSON, to this file.")]
DATA_DIR = Path(".art")
