"""The start-up parity gate between a real trainer and real engines, some of them told something wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from art.engine.builtin.engine import BuiltinEngine
from art.engine.nano_models import resolve
from art.engine.replicas.pool import EnginePool
from art.errors import ParityError
from art.server.checkpoints.parity import (
    PARITY_FLOAT32,
    Parity,
    judge_parity,
    likely_cause,
    measure_parity,
)
from art.server.checkpoints.score_difference import Rows
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec, ProbeReply

pytestmark = pytest.mark.slow

LORA = LoraSpec(r=8, alpha=32)
GREETING = [5, 6, 7, 8]
OPTIONS = BuiltinOptions(device="cpu", threads=1)


class Sides:
    """A trainer and engines in this process; `spoil` changes what the engine is given to load."""

    def __init__(self, trainer: Trainer, pool: EnginePool) -> None:
        self.trainer, self.engine = trainer, pool
        self.spoil: Callable[[Path], None] = lambda folder: None

    async def probe(self, lora: LoraSpec | None, path: Path, rows: Rows) -> ProbeReply:
        reply = self.trainer.probe(lora, path, rows, seed=0)
        self.spoil(path)
        return reply

    async def dtypes(self) -> list[str]:
        return ["float32", "float32"]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(load_policy(str(resolve("art/nano")), name="art/nano"))


@pytest.fixture
async def sides(trainer: Trainer) -> AsyncIterator[Sides]:
    engines = [await BuiltinEngine.start(str(resolve("art/nano")), OPTIONS) for _ in range(2)]
    pool = await EnginePool.from_engines(*engines)
    yield Sides(trainer, pool)
    await pool.close()


async def measured(sides: Sides, folder: Path, lora: LoraSpec | None = LORA) -> Parity:
    info = await sides.engine.info()
    return await measure_parity(
        sides,
        lora,
        GREETING,
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        folder=folder / "probe",
    )


@pytest.mark.parametrize(
    "lora", [LORA, LoraSpec(r=9, alpha=8, use_rslora=True), LoraSpec(r=4, targets=["q_proj"]), None]
)
async def test_engine_and_trainer_agree(sides: Sides, tmp_path: Path, lora: LoraSpec | None) -> None:
    parity = await measured(sides, tmp_path, lora)
    assert parity.mean < 1e-4 and parity.p99 < 1e-3 and parity.tokens == 64 + 3 * 16 and not parity.cause
    judge_parity(parity, "art/nano", refuse=True)
    assert not os.listdir(tmp_path) and (await sides.engine.info()).adapters == (), "nothing is left"


async def test_the_probe_shows_what_a_fresh_adapter_does_not(trainer: Trainer, tmp_path: Path) -> None:
    trainer.open("p/fresh", LORA)
    rows = [[1, 2, 3, 4, 5, 6]]
    before = trainer.score("p/fresh", rows)
    reply = trainer.probe(LORA, tmp_path / "probe", rows, seed=0)
    assert reply.base == before and reply.probe is not None
    moved = [abs(a - b) for a, b in zip(reply.base[0], reply.probe[0], strict=True)]
    assert max(moved) > 0.05
    assert trainer.score("p/fresh", rows) == before, "open models stay as they are"
    assert trainer.probe(LORA, tmp_path / "again", rows, seed=0) == reply, "seeded"


def other_alpha(folder: Path) -> None:
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps({**config, "lora_alpha": 2 * config["lora_alpha"]})
    )


def without_effect(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    zero = {name: value * 0 if "lora_B" in name else value for name, value in weights.items()}
    save_file(zero, folder / "adapter_model.safetensors")


def without_mlp(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    zero = {name: value * 0 if ".mlp." in name else value for name, value in weights.items()}
    save_file(zero, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [(other_alpha, "scaling"), (without_effect, "no effect"), (without_mlp, "fewer target modules")],
)
async def test_a_wrong_adapter_path_is_refused_with_its_cause(
    sides: Sides, tmp_path: Path, spoil: Callable[[Path], None], cause: str
) -> None:
    sides.spoil = spoil
    parity = await measured(sides, tmp_path)
    assert parity.base_mean < PARITY_FLOAT32.mean < parity.mean
    with pytest.raises(ParityError, match=rf"art/nano, LoRA r=8 alpha=32(.|\n)*{cause}(.|\n)*'warn'"):
        judge_parity(parity, "art/nano", refuse=True)
    judge_parity(parity, "art/nano", refuse=False)


async def test_one_wrong_replica_of_two_is_found(trainer: Trainer, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(resolve("art/nano"), other)
    config = json.loads((other / "config.json").read_text())
    rope = {**(config.get("rope_parameters") or {"rope_type": "default"}), "rope_theta": 500.0}
    (other / "config.json").write_text(json.dumps({**config, "rope_theta": 500.0, "rope_parameters": rope}))
    right = await BuiltinEngine.start(str(resolve("art/nano")), OPTIONS)
    pool = await EnginePool.from_engines(right, await BuiltinEngine.start(str(other), OPTIONS))
    try:
        parity = await measured(Sides(trainer, pool), tmp_path)
    finally:
        await pool.close()
    assert parity.base_mean > PARITY_FLOAT32.mean and "rope scaling" in parity.cause


def test_a_temperature_is_recognised() -> None:
    trainer = [[-0.1 - 0.37 * (at % 17) for at in range(64)]]
    engine = [[0.5 * logprob - 0.2 for logprob in trainer[0]]]
    assert "0.50 times the trainer's: a temperature" in likely_cause(
        engine, trainer, engine, trainer, PARITY_FLOAT32
    )
