"""Programs that convert at the same time, and ones that are killed while they do: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import nano_model, write_gguf
from typer.testing import CliRunner

from art.cli.main import app
from art.engine.base_models import local_folder
from art.errors import ConfigurationError
from art.process.files import take_lock
from art_extensions.gguf.cache import converted_name, digest_of, find_converted, list_converted
from art_extensions.gguf.messages import ConversionReply, ConversionRequest
from art_extensions.gguf.source import MODULE

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from art.engine.base_models import local_folder
print("folder:", local_folder(sys.argv[1], lambda phase: print(phase, flush=True)))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield write_gguf(tmp_path / "model.gguf", nano_model())


def cache_of(file: Path) -> Path:
    cache = file.parent / "home/.cache/art/gguf"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def start(*words: str, **pipes: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, **pipes)


def test_of_two_programs_one_converts_and_the_other_waits(file: Path) -> None:
    cache, name = cache_of(file), converted_name(digest_of(file))
    lock = take_lock(cache / f".{name}.lock")
    assert lock is not None
    programs = [start("-c", PROGRAM, str(file)) for _ in range(2)]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline().startswith(
            f"waiting for another program that converts {file}, 3600 s"
        )
    os.close(lock)
    told = [program.communicate(timeout=300)[0].splitlines() for program in programs]
    assert [lines[-1] for lines in told] == [f"folder: {cache / name}"] * 2
    assert sorted(sum("writing" in line for line in lines) for lines in told) == [0, 1]
    assert sorted(one.name for one in cache.iterdir()) == [f".{name}.lock", name]


def test_what_a_killed_program_left_is_removed_by_the_next(file: Path) -> None:
    cache, name = cache_of(file), converted_name(digest_of(file))
    program = start("-m", "art.process.child", MODULE, stdin=subprocess.PIPE)
    assert program.stdin is not None and program.stdout is not None
    request = ConversionRequest(source=str(file), cache=str(cache), patience_s=60)
    program.stdin.write(request.model_dump_json() + "\n")
    program.stdin.flush()
    assert ConversionReply.model_validate_json(program.stdout.readline()).phase == "reading model.gguf"
    program.send_signal(signal.SIGSTOP)
    (half_made,) = cache.glob(f".{name}.*.new")
    assert not (cache / name).exists() and find_converted(str(file)) is None and list_converted() == []
    program.kill()
    program.wait()
    assert half_made.exists(), "a killed program removes nothing"
    folder = Path(local_folder(str(file)))
    assert folder == cache / name == find_converted(str(file))
    assert sorted(one.name for one in cache.iterdir()) == [f".{name}.lock", name]
    done = CliRunner().invoke(app, ["models", "list", "--data-dir", str(file.parent / "none")])
    assert f"{file}  " in done.stdout and f"kB  {folder}" in done.stdout


def test_a_refusal_of_the_worker_is_that_of_the_caller(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigurationError, match="is damaged or only a part of a file"):
        local_folder(str(file))
    assert [one.name for one in cache_of(file).iterdir() if one.suffix != ".lock"] == []


@pytest.mark.skipif(os.getuid() != 0 or not sys.platform.startswith("linux"), reason="mounts a small disk")
def test_a_disk_that_is_too_small_is_told_and_stays_empty(file: Path) -> None:
    from art.errors import DiskError

    cache = cache_of(file)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(cache)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this container mounts nothing")
    try:
        with pytest.raises(DiskError, match=r"bytes when it is converted, and .* free: free space"):
            local_folder(str(file))
        assert [one.name for one in cache.iterdir() if one.suffix != ".lock"] == []
    finally:
        subprocess.run(["umount", str(cache)], check=True)
