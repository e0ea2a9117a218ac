"""The task of a box, without SkyPilot: what it says, what it never says, and what no task is made of."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.launch.backend import installed_origin, new_secrets, plan_box
from art_extensions.launch.box import ClientTraffic
from art_extensions.launch.task import BoxPlan, as_resources, resolve_version, stage_source, task_of

ROOT = Path(__file__).parents[3]


def box_plan(**changes: Any) -> BoxPlan:
    return BoxPlan(**{"name": "art", "version": "0.1.0", "gpu": "H100", **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no name"}, "cluster_name 'no name' is no name"),
        ({"gpu": None}, r"neither a GPU nor resources: give --gpus H100:1 .* or --resource cpus=4\+"),
        ({"resources": {"accelerators": "A100"}}, "are one thing: give one"),
        ({"cloud": "aws", "resources": {"infra": "gcp"}}, "cloud='aws' and the cloud of resources"),
        ({"nodes": 0}, "nodes=0"),
        ({"idle_minutes": -1}, "idle_minutes=-1"),
        ({"engine": "sglang"}, "engine 'sglang' is none of builtin, vllm"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        box_plan(**changes)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("engine", ["builtin", "vllm"])
def test_a_task_has_no_secret_and_opens_no_port(nodes: int, engine: str) -> None:
    task = task_of(box_plan(nodes=nodes, engine=engine))
    assert set(task) == {"name", "resources", "num_nodes", "setup", "run"}
    assert task["resources"] == {"accelerators": "H100"} and "0.0.0.0" not in str(task)
    made = new_secrets(nodes)
    assert set(made) == ({"ART_API_KEY"} if nodes == 1 else {"ART_API_KEY", "RAY_AUTH_TOKEN"})
    assert not any(value in str(task) for value in made.values()) and made != new_secrets(nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("version", ["0.1.0", Path("/somewhere/art")])
def test_its_scripts_are_bash(nodes: int, version: str | Path) -> None:
    task = task_of(box_plan(nodes=nodes, version=version, engine="vllm"))
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)


@pytest.mark.slow
def test_setup_installs_with_uv_unless_this_version_is_there(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "art").write_text("#!/bin/sh\necho art ${ART_THERE}\n")
    (programs / "uv").write_text('#!/bin/sh\necho "$@" >> "$HOME/uv.log"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    script = task_of(box_plan(nodes=2))["setup"]
    for there, calls in (("0.1.0", 0), ("0.0.9", 2)):
        home = tmp_path / there
        home.mkdir()
        environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "ART_THERE": there}
        subprocess.run(["bash"], input=script, text=True, check=True, timeout=60, env=environment)
        log = home / "uv.log"
        lines = log.read_text().splitlines() if log.exists() else []
        assert len(lines) == calls
    assert lines[1].endswith("agent-reinforcement-trainer[local,cluster]==0.1.0")


def test_resources_are_a_dictionary_or_an_object_of_skypilot() -> None:
    class Resources:
        def to_yaml_config(self) -> dict[str, Any]:
            return {"accelerators": {"H100": 1}}

    assert as_resources(Resources()) == {"accelerators": {"H100": 1}} and as_resources(None) == {}
    with pytest.raises(ConfigurationError, match="resources is a str"):
        as_resources("H100")
    with pytest.raises(ConfigurationError, match="something that YAML cannot"):
        as_resources({"accelerators": object()})


def test_a_version_is_a_number_or_a_folder_of_the_source(tmp_path: Path) -> None:
    assert resolve_version("0.1.0", "9", None) == "0.1.0"
    assert resolve_version(None, "9", None) == "9" and resolve_version(None, "9", ROOT) == ROOT
    assert resolve_version(str(ROOT), "9", None) == ROOT and installed_origin() == ROOT
    with pytest.raises(ConfigurationError, match="neither a version nor a folder with ART's source"):
        resolve_version(str(tmp_path), "9", None)


def test_only_what_a_wheel_is_made_of_goes_to_the_box(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", ".env", "notes.txt", "src/art/a.py", "src/art/.secret"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    staged = stage_source(source, tmp_path / "staged")
    files = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
    assert files == {"pyproject.toml", "README.md", "src/art/a.py"}


def test_the_defaults_of_a_plan_are_those_of_initialize_cluster() -> None:
    plan = plan_box(gpu="H100:8")
    assert (plan.name, plan.nodes, plan.idle_minutes, plan.version) == ("art", 1, 30.0, ROOT)


def metrics(completions: int, *, running: int = 0, own: int = 0) -> str:
    route = 'art_requests_total{{method="{}",route="{}",status="200"}} {}\n'
    return (
        route.format("POST", "/v1/chat/completions", float(completions))
        + route.format("GET", "/metrics", float(own))
        + route.format("GET", "/art/models", float(own))
        + f'art_jobs{{state="running"}} {float(running)}\nart_jobs{{state="done"}} 9.0\n'
    )


def test_requests_and_jobs_are_uses_and_copies_home_are_none() -> None:
    traffic = ClientTraffic(0.0)
    traffic.note(metrics(0), 5.0)
    assert traffic.idle_s(10.0) == 10.0
    traffic.note(metrics(3), 10.0)
    traffic.note(metrics(3, own=7), 20.0)
    assert traffic.idle_s(30.0) == 20.0
    traffic.note(metrics(3, running=1), 40.0)
    assert traffic.idle_s(41.0) == 1.0
