"""A base install names the extra that brings what is missing, in a command that can be typed as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import art
from art.cli.main import app
from art.errors import EXTRAS, MissingExtraError, extra_needed, install_command
from waiting import DEADLINE_S

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTION_OF = {
    "PIL": "pillow",
    "math_verify": "math-verify",
    "langchain_openai": "langchain-openai",
    "mlflow": "mlflow-skinny",
    "reasoning_gym": "reasoning-gym",
    "skyrl_gym": "skyrl-gym",
    "inspect_ai": "inspect-ai",
    "bfcl_eval": "bfcl-eval",
    "inspect_evals": "inspect-evals",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
}
BROUGHT_ALONG = {
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "langchain_core": "langchain-openai",
    "opentelemetry": "opentelemetry-sdk",
}
"""Modules of packages that another one requires."""


@pytest.fixture
def without_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a base install: neither the server's packages nor torch can be found."""
    for module in EXTRAS["local"]:
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    yield


@pytest.mark.extension
@pytest.mark.usefixtures("without_server")
@pytest.mark.parametrize(
    "verb", ["quickstart", "serve", "run", "audit-model art/nano", "chat art/nano --once hi"]
)
def test_a_verb_that_needs_the_server_names_the_extra(verb: str) -> None:
    done = CliRunner().invoke(app, verb.split())
    assert done.exit_code == 2
    assert done.stderr.startswith(f"art {verb.split()[0]} needs ") and done.stderr.count("\n") == 1
    assert install_command("local") in done.stderr and "[local]" in done.stderr


@pytest.mark.usefixtures("without_server")
def test_a_local_backend_names_the_extra_and_the_remote_one() -> None:
    with pytest.raises(MissingExtraError, match=re.escape(install_command("local"))) as refused:
        art.LocalBackend()
    assert "art.RemoteBackend(" in str(refused.value)


@pytest.mark.extension
@pytest.mark.usefixtures("without_server")
def test_an_export_names_the_extra_of_the_merge_and_of_the_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "games/models/player/checkpoints/0001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_config.json").write_text('{"base_model_name_or_path": "art/nano"}')
    (checkpoint / "adapter_model.safetensors").write_bytes(b"weights")
    export = ["export", "player", "--data-dir", str(tmp_path), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, export)
    assert done.exit_code == 2 and install_command("local") in done.stderr and "--format peft" in done.stderr
    assert not (tmp_path / "out").exists()
    assert CliRunner().invoke(app, [*export, "--format", "peft"]).exit_code == 0  # it needs neither
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    done = CliRunner().invoke(app, [*export, "--push", "hf://me/player"])
    assert done.exit_code == 2 and install_command("hub") in done.stderr


def test_an_extra_of_the_table_is_one_of_the_project_and_brings_the_modules() -> None:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found: set[str] = set()
        for line in extras[extra]:
            name, inner = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", line).groups()  # type: ignore[union-attr]
            if name == PROJECT["name"]:
                found = found.union(*(packages(one) for one in inner.split(",")))
            found.add(name)
        return found

    for extra, modules in EXTRAS.items():
        names = {BROUGHT_ALONG.get(module, DISTRIBUTION_OF.get(module, module)) for module in modules}
        assert names <= packages(extra), extra
    assert set(EXTRAS) == set(extras) - {"backend", "dev", "docs"}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'agent-reinforcement-trainer[local]'"),
        (
            {"url": "file:///home/a/my%20art", "dir_info": {"editable": True}},
            "pip install --editable '/home/a/my art[local]'",
        ),
        (
            {"url": "file:///tmp/art.whl", "archive_info": {}},
            "pip install 'agent-reinforcement-trainer[local] @ file:///tmp/art.whl'",
        ),
        (
            {"url": "https://example.org/art.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "pip install 'agent-reinforcement-trainer[local] @ git+https://example.org/art.git@12ab'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_the_rest_came(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "agent_reinforcement_trainer-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: agent-reinforcement-trainer\nVersion: 1\n"
    )
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install_command("local") == command


def test_a_fault_of_the_package_itself_is_not_called_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"art\.nothing"), extra_needed("local", "it"):
        import art.nothing  # type: ignore[import-not-found]  # noqa: F401


@pytest.mark.slow
def test_a_program_without_the_server_ends_in_one_sentence() -> None:
    blocked = ", ".join(map(repr, EXTRAS["local"]))
    program = f"import sys\nsys.modules.update(dict.fromkeys([{blocked}]))\nimport art\nart.LocalBackend()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stderr.splitlines()[-1].endswith(
        f"Run: {install_command('local')}. For a server on another machine, use "
        "art.RemoteBackend(base_url, api_key)"
    )
