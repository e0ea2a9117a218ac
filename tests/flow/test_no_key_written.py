"""A run with every secret that the program knows, all its outputs made: no file, page, bundle, tracker, log,
output or error has one.

Its ledger is in a Postgres whose address has a password, and Tinker's API serves before its server. The
kinds are in tests/promises/hostile/secrets.toml. What keeps a key for its own account alone is the exception.
"""

from __future__ import annotations

import asyncio
import logging
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from private_postgres import PrivatePostgres, programs, running_postgres
from tests.otlp_collector import Collector, collecting
from typer.testing import CliRunner

import art
from art.cli.main import app
from art.errors import ARTError
from art.process import environment
from art.process.resources import find_free_tcp_port
from art.rewards import Ruler
from art.server.settings import DATABASE_VARIABLE
from art.server.tenants import TENANTS_FILE, Tenants
from art_extensions.testing import LlmServer, TruthfulJudge
from secret_scan import OF_A_RUN, secrets_in, secrets_in_files, the_list, variables

TESTS = Path(__file__).parents[1]
ASK = {"role": "user", "content": "answer with yes or no"}
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
OF_MCP = "KEY_OF_AN_MCP_SERVER"
"""A variable that a command line names."""


@pytest.fixture(scope="module")
def database() -> Iterator[PrivatePostgres]:
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres() as server:
        yield server


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: PrivatePostgres, collector: Collector
) -> dict[str, str]:
    """Each variable with a secret of its own."""
    names = [*variables(OF_A_RUN), OF_MCP]
    made = {name: f"k3y-{number:02}-of-{name.lower()}-zq7" for number, name in enumerate(names)}
    del made["OTEL_EXPORTER_OTLP_TRACES_HEADERS"]  # which would be taken instead of the other one
    for name, key in made.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv(HEADERS, f"authorization=Bearer%20{made[HEADERS]}")
    url = database.create_database()
    made[DATABASE_VARIABLE] = str(urlsplit(url).password)
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    of_trackers = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "WANDB_DISABLE_GIT": "true",
    }
    for name, value in of_trackers.items():
        monkeypatch.setenv(name, value)
    return made


def worth(messages: Any) -> float:
    """Judges a conversation by its length."""
    return len(str(messages)) % 7 / 7


async def train(data: Path, keys: dict[str, str], judge: LlmServer) -> list[str]:
    """A step whose rewards are a judge's, whose key is used; a request of a tenant; some that are refused.

    Returns what was answered.
    """
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="player",
        project="games",
        base_model="art/nano",
        report_metrics=["tensorboard", "wandb", "otel"],
        base_path=str(data),
    )
    server = {"control": {"replay_steps": 2}}
    async with art.LocalBackend(path=str(data), server_options=server) as backend:
        await model.register(backend)

        async def play(seed: int) -> art.Trajectory:
            said = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[ASK], max_tokens=8, seed=seed
            )
            return art.Trajectory(messages_and_choices=[ASK, said.choices[0]], reward=float(seed % 2))

        groups = [art.TrajectoryGroup([await play(10 * group + n) for n in range(4)]) for group in range(2)]
        headers = {"extra_headers": {"x-key": keys["a judge's header"]}}
        asking: dict[str, Any] = {"base_url": judge.base_url, "params": headers}
        ruler = Ruler("judge", api_key=judge.key, cache=data / "answers.sqlite3", **asking)
        groups[0] = await ruler.score_group(groups[0])
        refused = Ruler("judge", api_key=keys[environment.OPENAI_API_KEY], cache=False, **asking)
        with pytest.raises(ARTError) as error:
            await refused.score_group(groups[1])
        await backend.train(model, groups, learning_rate=1e-3)
        await model.log(groups, split="train", step=1)
        return [str(error.value), *await ask_tinker(data / "tinker", keys, model)]


async def ask_tinker(folder: Path, keys: dict[str, str], model: Any) -> list[str]:
    """Returns what Tinker's API answers to its key, to a wrong one, and to what it refuses."""
    from art_extensions.tinker.app import make_app
    from art_extensions.tinker.service import make_service, remote_connect

    url = model.inference_base_url.removesuffix("/v1")
    routes, key = make_service(folder, remote_connect(url, model.inference_api_key))
    keys["Tinker's service"], wrong = key, f"tml-{keys['TINKER_API_KEY']}"
    tinker = make_app(routes)
    token = {"weights_access_token": keys["TINKER_API_KEY"]}
    requests: list[tuple[str, str, dict[str, Any], int]] = [
        ("create_session", key, {"tags": [], "sdk_version": "0.38"}, 200),
        ("create_session", wrong, {"tags": [], "sdk_version": "0.38"}, 401),
        ("copy_weights", key, {"source_path": "tinker://x/weights/y", **token}, 400),
        ("load_weights", key, {"path": 7, **token}, 400),
    ]
    answers = []
    async with (
        tinker.router.lifespan_context(tinker),
        httpx.AsyncClient(transport=httpx.ASGITransport(tinker), base_url="http://tinker") as http,
    ):
        for path, sent, body, status in requests:
            reply = await http.post(f"/api/v1/{path}", json=body, headers={"x-api-key": sent})
            assert reply.status_code == status, reply.text
            answers.append(reply.text)
    return answers


def make_outputs(data: Path, folder: Path) -> str:
    """Makes a bundle and pages, and returns what the commands say."""
    from art_extensions.ui.app import export_runs

    where = ["--data-dir", str(data)]
    commands: list[list[str]] = [
        ["report", "games/player", "--with-texts", "--output", str(folder / "report.zip"), *where],
        ["explain", "games/player", *where],
        ["replay", "games/player", "1", *where],
        ["mcp", "inspect", "--env", OF_MCP, "--", sys.executable, str(TESTS / "troublesome.py")],
    ]
    made = [CliRunner().invoke(app, command) for command in commands]
    assert [one.exit_code for one in made] == [0, 0, 0, 0], [one.output for one in made]
    nobody = f"http://127.0.0.1:{find_free_tcp_port()}/mcp"
    failed = CliRunner().invoke(app, ["mcp", "inspect", "--bearer", OF_MCP, "--", nobody])
    assert failed.exit_code == 1, failed.output
    assert export_runs(data, folder / "pages") > 3
    return "".join(one.output for one in (*made, failed))


@pytest.mark.slow
@pytest.mark.extension
@pytest.mark.usefixtures("fresh_wandb")
async def test_no_key_is_written_anywhere(
    tmp_path: Path,
    keys: dict[str, str],
    collector: Collector,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import wandb

    from art_extensions.sinks.wandb import open_runs

    caplog.set_level(logging.DEBUG)
    data = tmp_path / "data"
    keys["a tenant's"] = Tenants(data / "server" / TENANTS_FILE).create("alice")
    keys["a judge's header"] = "k3y-in-a-header-of-a-judge-zq7"
    async with LlmServer(TruthfulJudge(worth), key=keys[environment.JUDGE_API_KEY]) as judge:
        answers = await train(data, keys, judge)
    said = await asyncio.to_thread(make_outputs, data, tmp_path)
    await asyncio.to_thread(wandb.teardown)
    open_runs.cache_clear()
    out, err = capfd.readouterr()
    texts = {"output": f"{said}{out}{err}", "log": caplog.text, "answers": "".join(answers)}
    found = [
        f"{name} in {place}" for place, text in texts.items() for name in secrets_in(text.encode(), keys)
    ]
    found += [f"{name} in spans" for body in collector.bodies for name in secrets_in(body, keys)]
    assert not found + secrets_in_outputs(tmp_path, data, keys)
    assert any(keys[HEADERS] in told["authorization"] for _, told in collector.requests)


def secrets_in_outputs(folder: Path, data: Path, keys: dict[str, str]) -> list[str]:
    """Returns what is found in files. Replay records and those of W&B are among them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {".gz", ".wandb", ".sqlite3", ".zip", ".html"} <= {path.suffix for path in files}
    assert not (data / "server" / "ledger.sqlite").exists(), "the samples are in Postgres"
    return [
        f"{name} in {place}"
        for name, path, place in secrets_in_files(files, keys)
        if not (path.is_relative_to(data) and is_own_file(path.relative_to(data), path))
    ]


def is_own_file(name: Path, path: Path) -> bool:
    """Returns whether this is where the program itself keeps a key, for its own account alone."""
    own = {file for row in the_list()["secret"] for file in row.get("files", ())}
    return name.as_posix() in own and stat.S_IMODE(path.stat().st_mode) == 0o600
