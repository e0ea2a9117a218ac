"""GGUF files as a source of models (`art.engine.base_models.ModelSource`). A process of its own, with torch,
converts a file (`art_extensions.gguf.conversion`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.engine.base_models import BaseModel, MadeFolder, local_folder
from art.errors import (
    ConfigurationError,
    DeadlineError,
    DiskError,
    MissingExtraError,
    WorkerDiedError,
    require_extra,
)
from art.extensions import Tell
from art.process.imports import import_lock
from art.process.runtimes import end_process
from art_extensions.gguf.cache import find_converted, gguf_cache, list_converted
from art_extensions.gguf.messages import ConversionReply, ConversionRequest
from art_extensions.gguf.names import PACKAGED, SUFFIX, resolve_name

CONVERT_S = 3600.0
"""The deadline of a download and of a conversion, each, in seconds."""
MODULE = "art_extensions.gguf.conversion"
_LONGEST_LINE = 1 << 20
_TAIL = 12
_ERRORS = {
    "configuration": ConfigurationError,
    "extra": MissingExtraError,
    "disk": DiskError,
    "deadline": DeadlineError,
}


class GgufSource:
    """GGUF files: each is converted once, into the user's cache."""

    form = "GGUF"
    names: Sequence[str] = tuple(PACKAGED)

    def is_file_name(self, name: str) -> bool:
        return name.lower().endswith(SUFFIX)

    def resolve(self, name: str) -> BaseModel | None:
        return resolve_name(name)

    def find_folder(self, source: str) -> Path | None:
        return find_converted(source)

    async def make_folder(self, source: str, tell: Tell) -> Path:
        """Has a process of its own convert the file; see `ModelSource.make_folder`."""
        require_extra("local", f"base_model {source!r}")
        require_extra("smollm2", f"base_model {source!r}, a GGUF file,")
        request = ConversionRequest(source=source, cache=str(gguf_cache()), patience_s=CONVERT_S)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "art.process.child", MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        last = deque[str](maxlen=_TAIL)
        watching = asyncio.create_task(_keep_last(process.stderr, last))
        try:
            async with asyncio.timeout(3 * CONVERT_S):
                process.stdin.write(request.model_dump_json().encode() + b"\n")
                reply = await _read_reply(process.stdout, tell)
                await process.wait()
                await watching
        except TimeoutError as error:
            raise DeadlineError(f"converting {source} took longer than {3 * CONVERT_S:g} s") from error
        finally:
            watching.cancel()
            await end_process(process)
        if reply is None:
            words = "\n".join(last) or "it may have run out of memory"
            raise WorkerDiedError(f"converting {source} ended with exit code {process.returncode}: {words}")
        if reply.error is not None:
            raise _ERRORS[reply.kind](reply.error)
        assert reply.folder is not None
        return Path(reply.folder)

    def read_config(self, source: str, tell: Tell) -> Any:
        """Returns what the file's header says. A file that is here is not converted for it."""
        with import_lock:
            from transformers import AutoConfig

            from art_extensions.gguf.files import find_file
            from art_extensions.gguf.header import read_config, read_header

        file = find_file(source, tell).path
        if file is not None:
            return read_config(read_header(file))
        return AutoConfig.from_pretrained(local_folder(source, tell), local_files_only=True)

    def list_folders(self) -> Sequence[MadeFolder]:
        return list_converted()


GGUF = GgufSource()


async def _read_reply(stream: asyncio.StreamReader, tell: Tell) -> ConversionReply | None:
    """Returns the last line; None: the process ended without one."""
    async for line in stream:
        try:
            reply = ConversionReply.model_validate_json(line)
        except ValidationError:
            continue  # a library that prints
        if reply.phase is None:
            return reply
        tell(reply.phase)
    return None


async def _keep_last(stream: asyncio.StreamReader, last: deque[str]) -> None:
    while data := await stream.read(65536):
        last.extend(data.decode(errors="replace").splitlines())
