"""The path of a new user, from a wheel on. Commands that it prints are typed as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
INSTALL_SECONDS, RUN_SECONDS = 900, 300
"""Deadlines of a busy machine: far from what the steps take."""


class NewUser:
    """A shell in an environment that knows nothing of this clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        self.seconds: dict[str, float] = {}
        """Command -> wall seconds it took."""
        subprocess.run([sys.executable, "-m", "venv", str(self.environment)], check=True, timeout=RUN_SECONDS)

    def type(
        self, command: str, *, fails: int = 0, deadline: float = RUN_SECONDS, at: Path | None = None
    ) -> str:
        """Returns what a command printed, which must end with the exit code `fails`."""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=at or self.folder,
            env=self._variables(),
            capture_output=True,
            text=True,
            timeout=deadline,
            stdin=subprocess.DEVNULL,
        )
        self.seconds[command] = time.monotonic() - begun
        printed = done.stdout + done.stderr
        assert done.returncode == fails, f"{command}\n{printed}"
        return printed

    def _variables(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ART_", "PYTHON"))}
        if kept.get("SSL_CERT_FILE", "").startswith(tempfile.gettempdir()):
            del kept["SSL_CERT_FILE"]  # the tests' own authority: the package index is signed by a real one
        return {
            **kept,
            "PATH": f"{self.environment / 'bin'}{os.pathsep}{kept['PATH']}",
            "HOME": str(self.folder),
            # The versions that the other tests ran with, and torch as it is built for CPUs.
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            # No second download of what the tests' own environment has, and nothing compiled ahead.
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
            "PIP_COMPILE": "0",
        }


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> NewUser:
    """The second test installs a clone where the first one has installed a wheel: the rest is there."""
    return NewUser(tmp_path_factory.mktemp("user"))


def command_in(printed: str) -> str:
    """Returns the installation command that a message tells."""
    found = re.search(r"pip install (?:--editable )?'[^']+'", printed)
    assert found is not None, printed
    return found[0]


@pytest.mark.slow
def test_from_the_wheel_to_a_trained_model(user: NewUser) -> None:
    user.type(
        f"{sys.executable} -m pip wheel --quiet --no-deps --wheel-dir . '{ROOT}'", deadline=INSTALL_SECONDS
    )
    (wheel,) = user.folder.glob("agent_reinforcement_trainer-*.whl")
    user.type(f"pip install --quiet ./{wheel.name}", deadline=INSTALL_SECONDS)

    # Without the extra, each way in says how to get it, and says the same.
    said = {
        command_in(user.type("art doctor", fails=1)),
        command_in(user.type("art quickstart", fails=2)),
        command_in(user.type("art serve", fails=2)),
        command_in(user.type("art audit-model art/nano", fails=2)),
        command_in(user.type("python -c 'import art; art.LocalBackend()'", fails=1)),
    }
    (install,) = said
    user.type(f"{install} --quiet", deadline=INSTALL_SECONDS)
    assert "Ready to train." in user.type("art doctor")

    user.type("art init my-agent --base-model art/nano-games")
    agent = user.folder / "my-agent"
    assert install in (agent / "README.md").read_text()
    trained = user.type("python train.py --steps 2 --group-size 4", at=agent)
    assert [line.split(":")[0] for line in trained.splitlines() if "mean reward" in line] == [
        "step 0",
        "step 2",
    ]

    model = "my-agent/agent-001"
    assert "agent-001" in user.type("art models list", at=agent)
    assert "reward" in user.type(f"art show {model}@2 0 0", at=agent)
    user.type(f"art export {model} --output whole", at=agent)
    load = "from transformers import AutoModelForCausalLM as M; M.from_pretrained('whole')"
    user.type(f'python -c "{load}"', at=agent)
    assert user.type(f"art chat {model} --once 'yes, no or maybe?'", at=agent).strip()

    assert "--yes" in user.type(f"art models delete {model}", at=agent)
    assert (agent / ".art" / "my-agent" / "models" / "agent-001" / "checkpoints" / "0002").is_dir()
    user.type(f"art models delete {model} --yes", at=agent)
    assert "agent-001" not in user.type("art models list", at=agent)


@pytest.mark.slow
def test_a_clone_tells_a_command_that_installs_the_clone(user: NewUser) -> None:
    # Copied: what is installed leaves files beside the sources.
    clone = user.folder / "a clone"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    user.type("pip install --quiet --editable './a clone'", deadline=INSTALL_SECONDS)
    printed = user.type(
        'python -c \'import art.errors; art.errors.require_extra("autorl", "this")\'', fails=1
    )
    user.type(f"{command_in(printed)} --quiet", deadline=INSTALL_SECONDS)
    user.type('python -c \'import art.errors, rapidfuzz; art.errors.require_extra("autorl", "this")\'')
    assert str(clone) in user.type("python -c 'import art; print(art.__file__)'")
