"""The task of a box, as SkyPilot's own parser has it; without any cloud."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from boxes import SKYPILOT, VERSION, needs_skypilot

from art.errors import ConfigurationError
from art_extensions.launch.environment import TESTED, find_skypilot
from art_extensions.launch.sky_process import SkyPilot
from art_extensions.launch.task import BoxPlan, task_of

pytestmark = [pytest.mark.slow, needs_skypilot]
GOLDEN = Path(__file__).with_name("golden_task.yaml")


def command(*options: str) -> subprocess.CompletedProcess[str]:
    words = ["launch", "golden", *options, "--art-version", VERSION, "--environment", str(SKYPILOT)]
    return subprocess.run(
        [str(Path(sys.executable).with_name("art")), *words, "--dry-run"],
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_dry_run_prints_the_task_that_skypilot_takes_without_its_secrets(tmp_path: Path) -> None:
    variables = tmp_path / "user.env"
    variables.write_text("HF_TOKEN=hf_secret_of_the_user\nexport NAME='two words'\n")
    done = command("--gpus", "H100:8", "--nodes", "2", "--cloud", "aws", "--env-file", str(variables))
    assert done.returncode == 0, done.stderr
    assert done.stdout == GOLDEN.read_text().replace("0.1.0", VERSION)
    assert "hf_secret" not in done.stdout + done.stderr and "two words" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ("acelerators=H100", "did you mean 'accelerators'"),
        ("cpus=many", "many"),
        ("infra=nowhere", "nowhere"),
    ],
)
def test_wrong_resources_are_refused_with_skypilots_message(resource: str, message: str) -> None:
    done = command("--resource", resource)
    assert done.returncode == 2 and "SkyPilot refuses the task of box 'golden'" in done.stderr, done.stderr
    assert message in done.stderr


async def test_a_name_that_no_variable_may_have_is_refused() -> None:
    plan = BoxPlan(name="art", version=VERSION, gpu="H100")
    with pytest.raises(ConfigurationError, match="1NAME"):
        await SkyPilot(SKYPILOT).check("art", task_of(plan), {"1NAME": "value"}, None)


async def test_the_environment_has_the_version_that_is_tested(tmp_path: Path) -> None:
    assert (await find_skypilot(SKYPILOT))[1] == TESTED
    with pytest.raises(ConfigurationError, match="run `art runtime install skypilot` --at"):
        await find_skypilot(tmp_path)


def test_art_runtime_shows_the_environment() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("art")), "runtime", "status", "skypilot", "--at", str(SKYPILOT)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and f"SkyPilot {TESTED}" in done.stdout.splitlines()[-1], done.stderr


def test_skypilot_is_imported_by_one_program_that_nothing_of_ours_imports() -> None:
    source = Path(__file__).parents[3] / "src"
    importers = [path.name for path in source.rglob("*.py") if re.search(r"import sky\b", path.read_text())]
    assert importers == ["sky_program.py"]
    modules = "art_extensions.launch.backend, art_extensions.launch.command"
    program = f"import sys, {modules}; print('sky' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == "False"
