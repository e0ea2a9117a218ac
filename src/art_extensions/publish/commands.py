"""`art export`, with its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli.model_verbs import AsJson, Best, DataDir, readable_errors
from art.cli.run_options import DATA_DIR

Format = Annotated[
    str,
    typer.Option(
        help="merged: the whole model in safetensors. peft: the adapter. gguf: one file for llama.cpp."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="The precision of merged weights: auto, float32, bfloat16 or float16. auto: float32 below 500 "
        "million parameters, else the base model's own."
    ),
]
License = Annotated[
    str | None, typer.Option(help="The license for the model card. Default: the base model's, if known.")
]
CardTask = Annotated[str | None, typer.Option(help="What the model was trained to do, for the model card.")]
Converter = Annotated[
    str | None,
    typer.Option(help="llama.cpp's convert_hf_to_gguf.py, for gguf. Default: the one on the PATH."),
]
Push = Annotated[
    str | None,
    typer.Option(
        metavar="hf://OWNER/NAME", help="Also upload it, with the token of HF_TOKEN or of `hf auth login`."
    ),
]
Public = Annotated[
    bool, typer.Option("--public", help="Make a repository that --push creates public. Default: private.")
]


def export(
    model: Annotated[str, typer.Argument(help="The model: PROJECT/NAME or PROJECT/NAME@STEP.")],
    output: Annotated[Path, typer.Option(help="The folder to write. It must be new or empty.")],
    format: Format = "merged",
    best: Best = None,
    data_dir: DataDir = DATA_DIR,
    dtype: Dtype = "auto",
    license: License = None,
    task: CardTask = None,
    converter: Converter = None,
    push: Push = None,
    public: Public = False,
    json: AsJson = False,
) -> None:
    """Write a checkpoint as files that other programs load, with a model card.

    It reads the files of the project and needs no running server. Without @STEP and --best it takes the
    newest step.
    """
    from json import dumps
    from typing import Any, cast

    from rich.console import Console

    from art_extensions.publish.export import write_export

    with readable_errors(), Console(stderr=True).status(f"exporting {model}"):
        done = write_export(
            model,
            output,
            format=cast(Any, format),
            step=None,
            best=best,
            data_dir=data_dir,
            dtype=cast(Any, dtype),
            license=license,
            task=task,
            converter=converter,
            push=push,
            private=not public,
        )
    if json:
        typer.echo(dumps(done.to_dict(), indent=1))
        return
    typer.echo(f"{done.model}@{done.step} as {done.format} in {done.folder}: {', '.join(done.files)}")
    if done.url is not None:
        typer.echo(f"Pushed to {done.url}")
