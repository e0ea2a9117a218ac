"""`art runtime`: what is installed where, and the options of other trainers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from art.cli import app
from art.errors import ConfigurationError
from art_extensions.runtimes import commands


class FakeRuntime:
    """A program that is there once its folder is."""

    def __init__(self, name: str, place: Path) -> None:
        self.name, self.place, self.installed = name, place, list[tuple[Path | None, str]]()

    def install(self, folder: Path | None, device: str, clouds: Sequence[str], tell: object) -> str:
        self.installed.append((folder, device))
        return f"{self.name} is in {folder or self.place}"

    def folder(self) -> Path:
        return self.place

    def describe(self, folder: Path | None) -> Sequence[str]:
        if not (folder or self.place).is_dir():
            raise ConfigurationError(f"no environment for {self.name} at {folder or self.place}")
        return [f"{folder or self.place}: {self.name} 1.0"]


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeRuntime]:
    found = {name: FakeRuntime(name, tmp_path / name) for name in ("skypilot", "vllm")}

    def load(kind: str, name: str) -> FakeRuntime:
        if name not in found:
            raise ConfigurationError(f"no runtime {name!r}")
        return found[name]

    monkeypatch.setattr(commands, "load_extension", load)
    monkeypatch.setattr(commands, "extension_points", lambda kind: found)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["runtime", *words])


def test_status_shows_each_runtime_with_its_size(known: dict[str, FakeRuntime]) -> None:
    vllm = known["vllm"].place
    assert run("status").exit_code == 1
    (vllm / "lib").mkdir(parents=True)
    (vllm / "lib" / "a").write_bytes(b"x" * 1500)
    (vllm / "again").hardlink_to(vllm / "lib" / "a")
    (vllm / "link").symlink_to(vllm / "lib")
    shown = run("status", "--size")
    assert shown.exit_code == 0 and "vllm 1.0" in shown.stdout and "vllm: 1.5 kB on disk" in shown.stdout
    assert "no environment for skypilot" in shown.output
    assert "on disk" not in run("status", "--no-size").output
    for one in (run("status", "vllm"), run("status", "--at", str(vllm))):
        assert one.exit_code == 0 and "skypilot" not in one.output
    assert run("status", "skypilot").exit_code == 1 and run("status", "other").exit_code == 2


def test_prepare_installs_vllm(known: dict[str, FakeRuntime], tmp_path: Path) -> None:
    made = run("prepare", "--at", str(tmp_path / "mine"), "--device", "cpu")
    assert made.exit_code == 0 and "vllm is in" in made.stdout
    assert run("prepare").exit_code == 0 and run("install", "skypilot").exit_code == 0
    assert known["vllm"].installed == [(tmp_path / "mine", "cpu"), (None, "auto")]
    assert known["skypilot"].installed == [(None, "auto")]
    assert run("prepare", "--device", "tpu").exit_code == 2


@pytest.mark.parametrize("verb", ["status", "prepare"])
@pytest.mark.parametrize(
    ("option", "ours"), [("--hybrid-ep", "'ranks'"), ("--multinode", "art serve --cluster")]
)
def test_options_of_other_trainers_are_refused_by_name(
    known: dict[str, FakeRuntime], verb: str, option: str, ours: str
) -> None:
    refused = run(verb, option)
    assert refused.exit_code == 2 and f"{option} is for another trainer" in refused.output
    assert ours in refused.output and not known["vllm"].installed
