"""deploy/docker and the Compose file: pinned bases, sources that exist, no key, commands that exist."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import serve_flaws

from art.process.files import write_whole
from art_extensions.launch.task import BoxPlan, task_of

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.iterdir())
KNOWN = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "CMD"}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with its arguments, lines that go on joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def flaws_of(text: str) -> list[str]:
    """What is wrong with a Dockerfile of this project."""
    found, stages = [], set()
    parsed = instructions(text)
    found += [f"unknown instruction {name}" for name, _ in parsed if name not in KNOWN]
    for name, rest in parsed:
        if name == "FROM":
            image, _, stage = rest.partition(" AS ")
            stages.add(stage)
            if not re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", image):
                found.append(f"base image {image!r} is not pinned by a tag")
        if name == "COPY" and rest.startswith("--from="):
            if rest.split()[0].removeprefix("--from=") not in stages:
                found.append(f"COPY {rest}: no such stage")
        elif name == "COPY":
            found += [
                f"COPY {source}: not in the build's context"
                for source in rest.split()[:-1]
                if not (ROOT / source).exists() or not in_context(source)
            ]
        if name in ("ENV", "RUN") and re.search(r"(KEY|TOKEN|PASSWORD|SECRET)\S*=", rest):
            found.append(f"{name}: a secret")
    last = parsed[max(index for index, (name, _) in enumerate(parsed) if name == "FROM") :]
    users = [rest for name, rest in last if name == "USER"]
    if not users or users[-1].startswith(("0", "root")):
        found.append("it runs as root")
    return found


def in_context(source: str) -> bool:
    """Whether .dockerignore lets a path into the build."""
    verdict = True
    for line in (ROOT / ".dockerignore").read_text().split():
        if fnmatch.fnmatch(source, line.removeprefix("!")):
            verdict = line.startswith("!")
    return verdict


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_has_no_flaw_and_serves(path: Path) -> None:
    text = path.read_text()
    assert flaws_of(text) == []
    [command] = [json.loads(rest) for name, rest in instructions(text) if name == "CMD"]
    assert not serve_flaws(command)
    [port] = [rest for name, rest in instructions(text) if name == "EXPOSE"]
    assert port == "8000"


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_options_that_a_box_serves_with_exist(nodes: int) -> None:
    script = task_of(BoxPlan(name="box", version="0.1.0", gpu="H100", nodes=nodes))["run"]
    [line] = [line for line in script.splitlines() if "launch.box" in line]
    options = shlex.split(line.partition(" -- ")[2])
    assert options[:2] == ["--engine", "builtin"] and ("--cluster" in options) is (nodes > 1)
    assert not serve_flaws(["art", "serve", "--port", "8000", *options])


def test_a_flaw_is_seen(tmp_path: Path) -> None:
    good = (DOCKER / "Dockerfile.cpu").read_text()
    for old, new, said in (
        ("python:3.12.12-slim-bookworm AS", "python AS", "not pinned"),
        ("python:3.12.12-slim-bookworm AS", "python:latest AS", "not pinned"),
        ("COPY src ./src", "COPY sources ./src", "not in the build's context"),
        ("COPY src ./src", "COPY tests ./tests", "not in the build's context"),
        ("--from=build", "--from=other", "no such stage"),
        ("USER 1000:1000", "USER root", "runs as root"),
        ("PYTHONDONTWRITEBYTECODE=1", "ART_API_KEY=abc", "a secret"),
        ("WORKDIR /source", "WORKDRI /source", "unknown instruction"),
    ):
        assert old in good
        write_whole(tmp_path / "Dockerfile", good.replace(old, new))
        assert any(said in flaw for flaw in flaws_of((tmp_path / "Dockerfile").read_text())), new
    assert serve_flaws(["art", "serve", "--prot", "8000"]) and serve_flaws(["art", "serve", "--port", "1"])


def test_the_compose_file_opens_one_port_here_and_has_no_secret() -> None:
    services = COMPOSE["services"]
    opened = [port for service in services.values() for port in service.get("ports", ())]
    assert opened == ["127.0.0.1:8000:8000"]
    for service in services.values():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        for name, value in service["environment"].items():
            if re.search(r"KEY|PASSWORD", name):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value)
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        volumes = {volume.partition(":")[0] for volume in service["volumes"]}
        assert volumes <= set(COMPOSE["volumes"]) and "healthcheck" in service
    build = services["server"]["build"]
    assert (ROOT / "deploy" / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
    assert not serve_flaws(services["server"]["command"])
    assert COMPOSE["networks"]["closed"]["internal"] and services["database"]["networks"] == ["closed"]
