"""`art ui`, `art report` and `art explain`, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli.model_verbs import AsJson, DataDir, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import require_extra


def ui(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A data folder, a run's folder, or a folder of runs. Default: that of --data-dir."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: a free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the pages in your browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the pages as files into this new folder instead."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Print a link to the pages of the server at this address instead. Its key is read from "
            "ART_API_KEY.",
        ),
    ] = None,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Show runs, steps, rollouts and tokens in a browser. No server has to run: the files are read.

    Prints an address that opens one browser of this machine. Nothing in FOLDER changes, except the index
    `ui-index.sqlite`, which you can delete.
    """
    if url is not None:
        from art_extensions.ui.browser import show_server_pages

        with readable_errors():
            show_server_pages(url, open_browser=open_browser)
        return
    with readable_errors():
        require_extra("ui", "art ui")
    from art_extensions.ui.browser import show_pages, write_pages

    shown = data_dir if folder is None else folder
    if export is not None:
        raise typer.Exit(write_pages(shown, export))
    raise typer.Exit(show_pages(shown, port=port, open_browser=open_browser))


def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The model, PROJECT/NAME, or the folder of a model or run.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: art-report-PROJECT-NAME.zip in this folder."),
    ] = None,
    with_texts: Annotated[
        bool,
        typer.Option(
            "--with-texts", help="Also pack what judges and exceptions of rollouts say, and all settings."
        ),
    ] = False,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Pack a file for a bug report: versions, settings, metrics, findings, rollout outcomes, ends of logs.

    Keys, passwords, mail addresses, your home folder and your name are replaced. Prompts and replies are
    never packed. Prints what is inside and what was left out.
    """
    from art_extensions.ui.report import report_run

    with readable_errors():
        path, summary = report_run(run, data_dir, output, with_texts=with_texts)
    typer.echo(f"{summary}\nWritten: {path}. Read it before you send it.")


def explain(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The model, PROJECT/NAME, or the folder of a model or run.")
    ],
    data_dir: DataDir = DATA_DIR,
    json: AsJson = False,
) -> None:
    """Say where a run breaks first, with numbers, examples and one thing to change.

    Looks at rollouts, rewards, groups, gradients and promotion, in this order. Reads the files of the model,
    so it works during training and on a run that died. Exit code 1 when something is found, 2 for a wrong
    name.
    """
    from json import dumps

    from art_extensions.ui.explain import explain as explain_run

    with readable_errors():
        found = explain_run(run, data_dir)
    typer.echo(dumps(found.as_json(), indent=2) if json else found.text())
    raise typer.Exit(1 if found.findings else 0)
