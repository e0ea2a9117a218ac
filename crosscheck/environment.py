"""The environments that peers run in: one virtual environment each, made once, under `bench/envs/`.

    python -m crosscheck.environment            make all of them
    python -m crosscheck.environment trl        make one

A peer's own requirements may ask for a GPU's packages (vLLM, flash-attn, deepspeed). Where the code that is
compared needs none of them, the peer is installed without its requirements and with what that code imports.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "bench" / "envs"
INSTALL_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """What is installed after torch: `bare` without its requirements, then `requirements` with theirs.
    `beside` is in a folder of that name of the environment, from which single files are read: where it could
    be imported, others would do so.
    """

    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        # The versions of `constraints.txt`: in the benchmarks the peer's model code is the same as ours.
        "trl": Peer(
            requirements=(
                "trl==1.16.0",
                "accelerate==1.15.0",
                "bitsandbytes==0.50.2",
                "numpy==2.4.6",
                "peft==0.21.2",
                "safetensors==0.8.0",
                "transformers==5.23.0",
            )
        ),
        "verl": Peer(requirements=("verl==0.9.1", "orjson")),
        # Its own requirements cannot be installed without a GPU.
        "openrlhf": Peer(
            bare=("openrlhf==0.11.2",),
            beside=("deepspeed==0.19.8",),
            requirements=(
                "peft",
                "pillow",
                "pylatexenc",
                "ray==2.55.0",
                "safetensors",
                "sympy",
                "transformers==5.15.0",
            ),
        ),
    }
)
TORCH = "torch==2.13.0"


def python(name: str) -> Path:
    """The interpreter of a peer's environment, which is made first when it is not there.

    Raises SystemExit for an unknown peer or when an installation fails.
    """
    peer = PEERS.get(name)
    if peer is None:
        raise SystemExit(f"unknown peer {name!r}; known: {', '.join(PEERS)}")
    folder = FOLDER / name
    interpreter, mark = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(repr((TORCH, peer)).encode()).hexdigest()
    if not (mark.exists() and mark.read_text() == wanted):
        _install(folder, interpreter, peer)
        mark.write_text(wanted)
    return interpreter


def _install(folder: Path, interpreter: Path, peer: Peer) -> None:
    sys.stderr.write(f"making {folder.relative_to(ROOT)} (a minute or two)\n")
    if folder.exists():
        shutil.rmtree(folder)
    _run([sys.executable, "-m", "venv", str(folder)])
    # torch first and pinned, so that its CPU build is taken where the index offers one.
    beside = ["--no-deps", "--target", str(folder / "beside"), *peer.beside]
    for arguments in (
        [TORCH],
        ["--no-deps", *peer.bare] if peer.bare else [],
        [TORCH, *peer.requirements],
        beside if peer.beside else [],
    ):
        if arguments:
            _run([str(interpreter), "-m", "pip", "install", "--quiet", *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)!r} failed:\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PEERS:
        sys.stdout.write(f"{python(chosen)}\n")
