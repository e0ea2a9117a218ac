"""Installs the client alone into an empty environment, and prints what takes the space there.

    python tests/promises/installed_client.py

Counted is what pip installs, its compiled files included; not pip itself and what else an environment begins
with. The sum of the files' sizes is the same on every disk. A disk that gives files whole blocks of 4 KiB
needs a quarter more, because most files are small.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = 4096
BEGINNING = {"pip", "setuptools"}
"""Of an environment, before anything is installed."""


def install_client(folder: Path) -> Path:
    """Makes an environment with the base install of this tree; its `site-packages`."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=240)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*pip, str(ROOT)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    return site


def sizes_of(site: Path) -> Mapping[str, tuple[int, int]]:
    """Returns for each installed distribution the bytes of its files, and of their blocks."""
    plain: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for one in distributions(path=[str(site)]):
        name = one.name.lower()
        if name in BEGINNING:
            continue
        for file in one.files or ():
            path = Path(str(one.locate_file(file)))
            if path.is_file():
                size = path.stat().st_size
                plain[name] += size
                blocks[name] += -(-size // BLOCK) * BLOCK
    return {name: (size, blocks[name]) for name, size in plain.most_common()}


def size_table(sizes: Mapping[str, tuple[int, int]]) -> str:
    """Returns the sizes as lines, the largest first."""
    rows = {**sizes, "together": tuple(map(sum, zip(*sizes.values(), strict=True)))}
    return "\n".join(
        f"{name:32}{size / 1e6:8.1f} MB{disk / 1e6:8.1f} MB in blocks" for name, (size, disk) in rows.items()
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(size_table(sizes_of(install_client(Path(made) / "environment"))))
