"""A model that ART trained goes on with Tinker's client: it is loaded, sampled and trained by a path, by the
key that it is of alone.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripted_service import Client, ScriptedServer, serving
from test_tinker_tenants import tenant_key
from tinker_fixtures import PROGRAMS, started
from tinker_service import DONE, PYTHON, with_sdk

import art
from art.errors import NotFoundError, RequestError
from art.server.ledger.ledger import read_samples
from art.wire.models import ADAPTER_CONFIG_FILE, Manifest, ManifestEntry, ModelInfo
from art_extensions.tinker.weights_sources import art_model, art_step
from starting import StartedProgram

RANK, STEPS, MOST = 4, 2, 6
RUN = "art:flow:agent"


async def attempt(model: art.TrainableModel, **asked: Any) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=MOST, **asked
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = float(asked.get("seed", 0) % 3)
    return trajectory


async def train_with_art(data: Path) -> str:
    """The id of a greedy answer of the last step."""
    config: dict[str, Any] = {"peft_args": {"r": RANK, "lora_alpha": 8}}
    model = art.TrainableModel(
        name="agent", project="flow", base_model="art/nano-games", _internal_config=config
    )
    async with art.LocalBackend(path=data) as backend:
        await model.register(backend)
        for step in range(STEPS):
            group = art.TrajectoryGroup([await attempt(model, seed=100 * step + one) for one in range(6)])
            await model.train([group], config=art.TrainConfig(learning_rate=1e-2))
        last = await attempt(model, temperature=0)
    choice: Any = last.messages_and_choices[-1]
    assert choice.model_extra["step"] == STEPS
    return str(choice.model_extra["sample_id"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    data = tmp_path_factory.mktemp("own") / "data"
    sample_id = asyncio.run(train_with_art(data))
    sample = read_samples(data / "server" / "ledger.sqlite", [sample_id])[sample_id]
    with started(data) as service:
        prompt = json.dumps(list(sample.prompt_ids))
        arguments = (RUN, str(STEPS), prompt, tenant_key(service, "ann"))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with StartedProgram(
            [str(PYTHON), str(PROGRAMS / "art_checkpoint.py"), *arguments],
            env={**service.variables, "HF_HUB_OFFLINE": "1"},
            text=True,
            **pipes,
        ) as program:
            assert program.stdout is not None
            if program.stdout.readline() == "wait\n":
                service.kill("service")
            output, errors = program.communicate("\n", timeout=400)
        assert program.returncode in DONE and output, errors[-3000:]
        with closing(sqlite3.connect(f"file:{data}/server/ledger.sqlite?mode=ro", uri=True)) as connection:
            query = "SELECT count(*) FROM samples WHERE adapter = 'flow/agent@2'"
            (rows,) = connection.execute(query).fetchone()
        yield {**json.loads(output), "by art": list(sample.completion_ids), "rows": rows}


@pytest.mark.slow
class TestTheSdk:
    """With the real SDK."""

    pytestmark = with_sdk

    def test_it_says_greedily_what_art_s_own_says(self, told: dict[str, Any]) -> None:
        assert told["said"] == told["by art"] == told["said after a restart"]
        assert told["rows"] >= 3, "its samples are not rows of the ledger under the model's own name"

    def test_each_way_to_load_it_has_its_weights(self, told: dict[str, Any]) -> None:
        for name, found in told["logprobs"].items():
            assert found == pytest.approx(told["sampled logprobs"], abs=2e-3), name
            assert found != pytest.approx(told["other"], abs=2e-3)
        folder, rank = told["info"]
        assert (Path(folder) / "tokenizer.json").is_file() and rank == RANK

    def test_it_is_trained_on_with_the_optimizer_or_a_fresh_one(self, told: dict[str, Any]) -> None:
        last = {name: sum(told[f"trained {name}"][-MOST:]) for name in ("fresh", "going on", "loaded")}
        assert min(last.values()) > sum(told["logprobs"]["fresh"][-MOST:])
        assert told["trained fresh"] == pytest.approx(told["trained loaded"], abs=1e-5)
        assert told["trained fresh"] != pytest.approx(told["trained going on"], abs=1e-4)
        assert told["from there"] == pytest.approx(told["trained fresh"], abs=1e-5)
        assert told["answers"] == told["said"]

    def test_it_is_described_as_a_run(self, told: dict[str, Any]) -> None:
        assert told["weights"] == ["art/nano-games", True, RANK]
        assert told["listed"] == [f"tinker://{RUN}/weights/{step}" for step in range(STEPS + 1)]
        assert told["run"] == ["art/nano-games", told["listed"][-1]]
        assert told["among saved"] == [], "a program that deletes what it saved would meet it"

    def test_what_is_not_there_is_refused_by_name(self, told: dict[str, Any]) -> None:
        refused = told["refused"]
        for name in ("train on a missing step", "a missing step"):
            assert "flow/agent has no step 77; its steps: [0, 1, 2]" in refused[name][1]
        assert refused["a missing step"][0] == refused["a missing model"][0] == "NotFoundError"
        assert "model no/one is not registered" in refused["a missing model"][1]
        assert "no model 'no/one'" in refused["a missing run"][1]
        for name in ("no step", "a way up", "a hidden way up"):
            assert refused[name][0] == "BadRequestError" and "art:PROJECT:MODEL" in refused[name][1], name
        for name in ("deleting", "publishing"):
            assert refused[name][0] == "BadRequestError" and "ART trains" in refused[name][1]

    def test_it_does_not_exist_for_another_tenant(self, told: dict[str, Any]) -> None:
        found = told["foreign"]
        assert {name for name, one in found.items() if one[0] == "works"} == set()
        for name in ("sample", "train", "info"):
            assert "flow/agent is not registered" in found[name][1], found[name]
        assert "of this key" in found["list"][1]
        assert "art:PROJECT:MODEL" in found["with a tenant's name"][1]


@pytest.mark.parametrize(
    "path",
    [
        "tinker://art:flow:agent/weights/-1",
        "tinker://art:flow:agent/weights/1/2",
        "tinker://art:flow:agent/external_weights/1",
        "tinker://art:flow/weights/1",
        "tinker://art:flow:agent:more/weights/1",
        "tinker://art:../x:agent/weights/1",
        "tinker://art:flow:.agent/weights/1",
        "tinker://art:ann~flow:agent/weights/1",
        "tinker://art:flow:agent/weights/1\n",
    ],
)
def test_another_form_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match="art:PROJECT:MODEL/weights/STEP"):
        art_step(path)


def test_a_path_is_read() -> None:
    assert art_step("tinker://art:my.flow:agent-1_b/weights/0012") == ("my.flow", "agent-1_b", 12)
    assert art_model("art:flow:agent") == ("flow", "agent") and art_model("session:train:0") is None
    with pytest.raises(RequestError, match="art:PROJECT:MODEL"):
        art_model("art:flow")


class OwnModels(ScriptedServer):
    """Has a model of ART's own, whose adapter is described so."""

    config = b""

    async def model(self, project: str, name: str) -> ModelInfo:
        if name != "agent":
            raise NotFoundError("no such model", status=404)
        return ModelInfo(
            project=project,
            name=name,
            base_model="art/nano-games",
            inference_name=name,
            step=3,
            checkpoints=[3],
        )

    async def files(self, name: str, step: int, project: str = "tinker") -> Manifest:
        entry = ManifestEntry(sha256="0" * 64, size=1)
        return Manifest(files={ADAPTER_CONFIG_FILE: entry} if self.config else {"model.safetensors": entry})

    async def file(self, name: str, step: int, file: str, project: str = "tinker") -> bytes:
        return self.config


async def sampler_of(client: Client, path: str) -> str:
    """Why there is no sampler of a path."""
    asked = {"session_id": await client.session(), "sampling_session_seq_id": 0, "model_path": path}
    reply = await client.post("create_sampling_session", asked)
    assert reply.status_code == 400, reply.text
    return str(reply.json()["detail"])


async def test_a_model_without_a_lora_is_refused(tmp_path: Path) -> None:
    server, path = OwnModels(), "tinker://art:flow:agent/weights/3"
    async with serving(tmp_path, server) as client:
        assert "all weights of flow/agent are trained" in await sampler_of(client, path)
        for config in (b"no JSON", b"[]", b'{"r": 0, "lora_alpha": 2}', b'{"lora_alpha": 2}'):
            server.config = config
            assert "says no LoRA" in await sampler_of(client, path)
