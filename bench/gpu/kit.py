"""`make gpu-kit`: packs what a GPU machine without a network lacks, as wheels, into the folder `.gpu-kit`.

The machine has torch, transformers, PEFT and matplotlib (`machine.txt`). The kit has everything else that
client, server, trainer, engine, quick start and the GPU tests import, in the versions of `constraints.txt`,
and this project's metadata; the project's code is the working tree. polars is not needed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".gpu-kit"
MACHINE = Path(__file__).with_name("machine.txt")
MOST_MIB = 30.0
PYTHON = "3.12"
EXTRAS = ("server", "ui")
"""Of pyproject.toml. Their torch, transformers and PEFT are the machine's."""
TESTS = ("hypothesis", "pytest", "pytest-asyncio", "pytest-timeout", "certifi")
"""What the tests of CUDA import."""
GGUF = ("gguf",)
"""What transformers reads a GGUF file with."""
GLIBC = (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
"""Of wheels that run there, 2.x: pip matches them exactly."""


def normal_name(requirement: str) -> str:
    """Returns a requirement's package as indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]).lower()


def read_requirements(path: Path) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def wanted_requirements(project: Path) -> list[str]:
    """Returns what the kit must satisfy; what the machine has is among it, for its versions."""
    told = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = [line for name in EXTRAS for line in told["optional-dependencies"][name]]
    return [*told["dependencies"], *extras, *TESTS, *GGUF]


def packed_versions(report: str, on_machine: set[str]) -> Iterator[str]:
    """Yields `name==version` of what pip would install and the machine does not have."""
    for one in json.loads(report)["install"]:
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        if normal_name(name) not in on_machine:
            yield f"{name}=={version}"


def check_size(folder: Path, most_mib: float = MOST_MIB) -> float:
    """Returns the MiB of a folder's files. Raises SystemExit where they are too many, with the largest."""
    files = sorted(((path.stat().st_size, path.name) for path in folder.iterdir()), reverse=True)
    mib = sum(size for size, _ in files) / 2**20
    if mib >= most_mib:
        largest = ", ".join(f"{name} ({size / 2**20:.1f})" for size, name in files[:3])
        raise SystemExit(
            f"the kit has {mib:.1f} MiB and may have {most_mib:g}. The largest: {largest}. Leave out what "
            f"the machine has ({MACHINE.name}), or that the parts do not import."
        )
    return mib


def pip(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"pip {arguments[0]} failed with exit code {done.returncode}")
    return done.stdout


def for_machine() -> list[str]:
    """Returns the options that make pip choose wheels for the machine, whatever this one is."""
    names = [*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), "manylinux2014_x86_64", "manylinux1_x86_64"]
    platforms = [option for name in names for option in ("--platform", name)]
    return ["--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]


def download(folder: Path) -> None:
    """Resolves all requirements together with what the machine has, and downloads the rest."""
    machine = read_requirements(MACHINE)
    on_machine = {normal_name(line) for line in machine}
    pins = [
        line for line in read_requirements(ROOT / "constraints.txt") if normal_name(line) not in on_machine
    ]
    with tempfile.TemporaryDirectory(prefix="art-gpu-kit-") as name:
        constraints = Path(name) / "constraints.txt"
        constraints.write_text("\n".join([*pins, *(line for line in machine if "==" in line)]) + "\n")
        wanted = wanted_requirements(ROOT / "pyproject.toml")
        report = pip(
            # pip holds a wheel's Requires-Python against its own Python, not against the one asked for.
            *("install", "--dry-run", "--quiet", "--ignore-installed", "--ignore-requires-python"),
            *("--report", "-"),
            *("--target", name, "--constraint", str(constraints), *for_machine(), *wanted),
        )
        exact = list(packed_versions(report, on_machine))
    pip("download", "--quiet", "--no-deps", "--dest", str(folder), *for_machine(), *exact)


def pack_metadata(folder: Path) -> None:
    """Adds a wheel with this project's metadata and none of its code: servers tell their version."""
    with tempfile.TemporaryDirectory(prefix="art-gpu-kit-") as name:
        pip("install", "--quiet", "--target", name, "hatchling>=1.25", "editables>=0.5")
        program = (
            f"import sys; sys.path.insert(0, {name!r}); import hatchling.build as build; "
            f"build.build_editable({str(folder)!r})"
        )
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder.resolve()
    made = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    download(made)
    pack_metadata(made)
    mib = check_size(made)
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    print(f"{folder}: {len(list(folder.iterdir()))} wheels, {mib:.1f} MiB of at most {MOST_MIB:g}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
