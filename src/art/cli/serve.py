"""`art serve`: the server in the foreground, for people and for process managers."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import typer

from art.errors import ARTError


def serve_forever(*, host: str, port: int, data_dir: Path) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 0 after a clean stop, 1 when it could not start."""
    from art.server.control_settings import ControlSettings
    from art.server.process import Ready, run
    from art.server.settings import ServerSettings, key_source

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = ServerSettings(
        host=host, port=port, data_dir=data_dir, control=ControlSettings(serve_registered=True)
    )

    def tell(ready: Ready) -> None:
        # The key itself is never printed: a terminal is copied into bug reports.
        typer.echo(
            f"ART serves http://{ready.host}:{ready.port} (OpenAI's protocol under /v1).\n"
            f"The key is in {key_source(settings)}."
        )
        sys.stdout.flush()

    try:
        run(settings, on_ready=tell)
    except ARTError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        return 1
    return 0
