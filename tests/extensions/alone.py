"""Deletes each extension in turn, and runs the loop without it: `make test-alone`, about five minutes.

    python tests/extensions/alone.py                 all extensions
    python tests/extensions/alone.py vllm sandbox    some
    python tests/extensions/alone.py --core          all gone: the core's own tests that start no process
    python tests/extensions/alone.py --core WORDS    ... with these words for pytest

In a copy of the source each time: `import art` with all its names, `art --help`, and a short quick start.
The exit code is 1 if one of them fails. `tests/test_extensions.py` has the case where all are gone. The tests
of the core use `art_extensions.testing`, endpoints that answer by a script: it alone is in their copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
EXTENSIONS = SOURCE / "art_extensions"
NAMES = "import art\nfor name in art.__all__:\n    getattr(art, name)"
ART = "from art.cli import app; app()"
SMALL = ("--steps", "1", "--groups-per-step", "2", "--group-size", "4", "--eval-rollouts", "8")
LIMIT_S = 400
CORE_TESTS = "not extension and not vllm and not slow"


def run_without(name: str, folder: Path) -> str:
    """Returns the output of the first run that fails, or "". folder: where the copy is made."""
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("__pycache__", "art-stubs"))
    # The name must not be found in an installed source tree either.
    gone = folder / "src" / "art_extensions" / name
    shutil.rmtree(gone)
    gone.with_suffix(".py").write_text(f"raise ModuleNotFoundError('{name} is gone')\n")
    shutil.copy(SOURCE.parent / "pyproject.toml", folder)
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    quickstart = ("quickstart", *SMALL, "--output", str(folder / "run"))
    for code, words in ((NAMES, ()), (ART, ("--help",)), (ART, quickstart)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            return f"{' '.join(words) or 'import art'}:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return ""


def test_core(words: list[str]) -> int:
    """Tests the core's rooms in a copy of the project without extensions. Returns the exit code."""
    project = SOURCE.parent
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=project, capture_output=True, text=True, check=True).stdout.split("\0")
    rooms = [*(folder.name for folder in (SOURCE / "art").iterdir()), "contracts"]
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, names):
            parts = Path(name).parts
            gone = parts[:2] == ("tests", "extensions") or (
                parts[:2] == ("src", "art_extensions") and len(parts) > 3 and parts[2] != "testing"
            )
            if not gone and (project / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(project / name, Path(folder) / name)
        tests = [str(found) for room in rooms if (found := Path(folder, "tests", room)).is_dir()]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            CORE_TESTS,
            *tests,
            *words,
        ]
        env = {**os.environ, "PYTHONPATH": str(Path(folder) / "src"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=folder, env=env, check=False).returncode


def main(chosen: list[str]) -> int:
    """Prints a line for each extension. Returns the exit code."""
    if chosen[:1] == ["--core"]:
        return test_core(chosen[1:])
    known = sorted(folder.name for folder in EXTENSIONS.iterdir() if (folder / "__init__.py").is_file())
    if unknown := sorted(set(chosen) - set(known)):
        print(f"no extension {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = 0
    for name in chosen or known:
        with tempfile.TemporaryDirectory() as folder:
            problem = run_without(name, Path(folder))
        failed += bool(problem)
        print(f"without {name}: {problem or 'runs'}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
