"""`art ui`: the pages of the runs below a folder, for one browser of this machine; or those of a server."""

from __future__ import annotations

import asyncio
import logging
import socket
import webbrowser
from pathlib import Path

import typer

from art.errors import ConfigurationError

HOST = "127.0.0.1"


def show_pages(folder: Path, *, port: int, open_browser: bool) -> int:
    """Serves the pages until Ctrl-C. Returns 0, or 2 where the folder or the port cannot be used."""
    import uvicorn

    from art_extensions.ui.app import guarded_pages

    if not _is_folder(folder):
        return 2
    try:
        listener = _listen(port)
    except OSError as error:
        typer.echo(f"port {port} cannot be used ({error.strerror}): choose another with --port", err=True)
        return 2
    bound = listener.getsockname()[1]

    def print_next(token: str) -> None:
        typer.echo(f"For another browser: http://{HOST}:{bound}/?token={token}")

    pages = guarded_pages(folder, port=bound, on_use=print_next)
    typer.echo(f"The runs below {folder}: http://{HOST}:{bound}/?token={pages.access.token}")
    typer.echo("The address opens one browser. Press Ctrl-C to end.")
    if open_browser:
        webbrowser.open(f"http://{HOST}:{bound}/?token={pages.access.token}")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(pages, log_level="warning", access_log=False, lifespan="off", server_header=False)
    server = uvicorn.Server(config)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        return 0
    finally:
        pages.close()
    return 0


def show_server_pages(url: str, *, open_browser: bool) -> None:
    """Prints a link to the pages of a server that runs. Raises ARTError."""
    from art.cli.model_summaries import server_backend

    async def make_link() -> str:
        async with server_backend(url) as backend:
            return await backend.pages_link()

    link = asyncio.run(make_link())
    typer.echo(f"The runs of {url}: {link}")
    typer.echo("The address opens one browser, within an hour.")
    if open_browser:
        webbrowser.open(link)


def write_pages(folder: Path, target: Path) -> int:
    """Writes the pages as files. Returns 0, or 2 where a folder cannot be used."""
    from art_extensions.ui.app import export_runs

    if not _is_folder(folder):
        return 2
    try:
        count = export_runs(folder, target)
    except (ConfigurationError, OSError) as error:
        typer.echo(str(error), err=True)
        return 2
    typer.echo(f"{count} pages: open {target / 'index.html'}")
    return 0


def _is_folder(folder: Path) -> bool:
    """Returns whether the folder of the runs is there; prints what to name where it is not."""
    if folder.is_dir():
        return True
    typer.echo(f"there is no folder {str(folder)!r}: name a data folder (.art) or a folder of runs", err=True)
    return False


def _listen(port: int) -> socket.socket:
    """Returns a socket of loopback that takes connections from now on. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener
