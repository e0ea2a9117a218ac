"""`make gpu-kit-check`: proves without a GPU that the kit runs on the machine that it was packed for.

1. An environment of Python 3.12 with what `machine.txt` names, in these versions, and nothing more. That
   torch is a build for CUDA (3 GB with its libraries), which computes on a CPU, too.
2. In a network namespace that has nothing but loopback (`unshare --net`): `run.sh` installs the wheels of
   `.gpu-kit` there and runs every part on tiny shapes, a part that overruns and one that fails first.
3. What must hold is checked: versions, no network, every part done, the two others cut and failed, the total.

It is started by hand: it downloads gigabytes once, and then takes some minutes of two cores. The limits of
the parts are those of the GPU machine; `--times` multiplies them, for a slower or busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.gpu.kit import MACHINE, MOST_MIB, PYTHON, ROOT, check_size, normal_name, read_requirements
from bench.gpu.parts import INSTALL, LOG, PARTS, PROOFS, RESULTS, TOTAL
from bench.gpu.results import read_lines

ENVIRONMENT = ROOT / ".venv-gpu-kit"
LIBRARIES = ("nvidia-", "cuda-", "pip")
"""Of torch's build, by the beginning of their names; and pip."""
ISOLATED = 'ip link set lo up && exec "$@"'
PROBE = """
import socket
try:
    socket.create_connection(("1.1.1.1", 443), timeout=5)
except OSError as error:
    print(f"no network: {error}")
else:
    raise SystemExit("there is a network")
"""


def find_python(version: str) -> str:
    """Returns an interpreter of this version. Raises SystemExit where there is none."""
    found = shutil.which(f"python{version}")
    # A shim of pyenv is on the PATH for versions that it does not start.
    if found and not subprocess.run([found, "--version"], capture_output=True, timeout=60).returncode:
        return found
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")):
        return str(path)
    raise SystemExit(f"Python {version} is not on the PATH, nor under ~/.pyenv/versions: install it")


def make_environment(folder: Path, requirements: Iterable[str]) -> Path:
    """Makes the machine's environment, or brings it to these versions; returns its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([find_python(PYTHON), "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    wanted = list(requirements)
    if not lacking(wanted, installed_versions(pip)):
        return python
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *wanted], check=True)
    allowed = {normal_name(line) for line in wanted}
    others = [
        name for name in installed_versions(pip) if name not in allowed and not name.startswith(LIBRARIES)
    ]
    if others:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *others], check=True)
    return python


def installed_versions(pip: list[str]) -> dict[str, str]:
    listed = subprocess.run([*pip, "list", "--format", "json"], check=True, stdout=subprocess.PIPE, text=True)
    return {normal_name(one["name"]): one["version"].partition("+")[0] for one in json.loads(listed.stdout)}


def lacking(wanted: Iterable[str], installed: dict[str, str]) -> list[str]:
    """Returns the requirements that an environment does not meet."""
    pinned = [(line, installed.get(normal_name(line)), line.partition("==")[2]) for line in wanted]
    return [line for line, there, version in pinned if there is None or (version and there != version)]


def run_isolated(command: list[str], environment: dict[str, str]) -> int:
    """Runs a command where there is no network but loopback; returns its exit code."""
    isolated = ["unshare", "--net", "bash", "-c", ISOLATED, "isolated", *command]
    if os.geteuid():
        isolated.insert(1, "--map-root-user")
    return subprocess.run(isolated, cwd=ROOT, env={**os.environ, **environment}, check=False).returncode


def faults(lines: list[dict[str, Any]], seconds: float, machine: list[str]) -> list[str]:
    """Returns what does not hold of a run's results."""
    found = []
    ends = {line["part"]: line for line in lines if line["kind"] == "part"}
    expected = {PROOFS[0].name: "cut", PROOFS[1].name: "failed", **{part.name: "done" for part in PARTS}}
    for name, status in expected.items():
        end = ends.get(name, {"status": "missing", "said": ""})
        if end["status"] != status:
            found.append(f"part {name!r} is {end['status']}, not {status}: {end['said']}")
    reported = {line["part"] for line in lines if line["kind"] == "result"}
    silent = {part.name for part in PARTS if not part.command} - reported
    if silent:
        found.append(f"no result of {', '.join(sorted(silent))}")
    (described,) = [line for line in lines if line["kind"] == "machine"] or [{}]
    for requirement in machine:
        name, _, version = requirement.partition("==")
        told = str(described.get(name, version)).partition("+")[0]
        if version and told != version:
            found.append(f"{name} is {told}, not {version}")
    if seconds > TOTAL:
        found.append(f"it took {seconds:.0f} s, more than {TOTAL:.0f}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kit", type=Path, default=ROOT / ".gpu-kit", help="what `make gpu-kit` packed")
    parser.add_argument("--times", type=float, default=1.0, help="multiplies the limits of the parts")
    asked = parser.parse_args(arguments)
    if not asked.kit.is_dir():
        raise SystemExit(f"there is no {asked.kit}: run `make gpu-kit`")
    machine = read_requirements(MACHINE)
    python = make_environment(ENVIRONMENT, machine)
    if run_isolated([str(python), "-c", PROBE], {}):
        raise SystemExit(
            "the network could not be taken away: `unshare --net` needs root, or user namespaces"
        )
    with tempfile.TemporaryDirectory(prefix="art-gpu-check-") as name:
        out = Path(name)
        environment = {
            "PYTHON": str(python),
            "OUT": str(out),
            "ART_GPU_KIT": str(asked.kit.resolve()),
            "ART_GPU_INSTALL_SECONDS": f"{asked.times * INSTALL:.0f}",
        }
        begin = time.monotonic()
        command = ["bash", "bench/gpu/run.sh", "--dry", "--device", "cpu", "--prove-limits"]
        run_isolated([*command, "--times", f"{asked.times:g}"], environment)
        seconds = time.monotonic() - begin
        found = faults(list(read_lines(out / RESULTS)), seconds / asked.times, machine)
        if found and (out / LOG).exists():
            print((out / LOG).read_text(encoding="utf-8", errors="replace")[-20000:])
    print(*found, sep="\n")
    size, most = check_size(asked.kit), asked.times * TOTAL
    print(f"kit of {size:.1f} MiB (at most {MOST_MIB:g}), {seconds:.0f} s of at most {most:.0f}, no network")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
