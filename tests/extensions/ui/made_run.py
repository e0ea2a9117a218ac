"""A data folder as a training run leaves it, made by the library's own writers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from openai.types.chat.chat_completion import Choice
from safetensors.numpy import save_file

import art
from art.server.jobs.job_store import JobStore
from art.server.ledger.schema import CREATE, INSERT, SampleRecord, to_row
from art.tracking.model_files import append_history_row
from art.tracking.trajectory_log import append_groups
from art.wire.jobs import TrainJobRequest
from art.wire.rollout_record import JudgeNote, RolloutFailure, RolloutRecord
from art.wire.training import OptimizerSpec, TokenFileHeader

END, SPACE, HALVES = 110, 100, (101, 102)
TOKENIZER = json.dumps(
    {
        "added_tokens": [{"id": END, "content": "<|im_end|>"}],
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {chr(33 + n): n for n in range(94)} | {"Ġ": SPACE, "Ã": HALVES[0], "©": HALVES[1]},
        },
    }
)
"""Ids 0 to 93 are the characters from "!" on; then a space, and the halves of "é"."""


def ids_of(text: str) -> list[int]:
    """Returns ids of the vocabulary above."""
    ids: list[int] = []
    for one in text:
        ids += [SPACE] if one == " " else list(HALVES) if one == "é" else [ord(one) - 33]
    return ids


def reply(sample: str, content: str = "", **message: Any) -> Choice:
    said = {"role": "assistant", "content": content, **message}
    return Choice.construct(
        index=0, finish_reason="stop", logprobs=None, message=said, sample_id=sample, step=0
    )


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def trajectory(name: str, reward: float | art.Unscored, answer: str, *, text: str = "Who?") -> art.Trajectory:
    return art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You answer."},
            {"role": "user", "content": text},
            reply(f"{name}-0", tool_calls=[call("search", json.dumps({"word": answer}))]),
            {"role": "tool", "tool_call_id": "c1", "content": f"found {answer}"},
            reply(f"{name}-1", answer),
        ],
        reward=reward,
        metrics={"right": bool(reward == 1.0)},
        metadata={"scenario_id": "s-1", "plan": {"words": [1, None]}, "show": f"word\n  {answer}"},
        logs=[f"RULER explanation: {answer} is what was asked"],
        rollout_id=name,
    )


class MadeRun:
    """A run below `root`, a data folder, with one model."""

    def __init__(self, root: Path, project: str = "games", name: str = "player") -> None:
        self.root, self.model = root, root / project / "models" / name
        self.model.mkdir(parents=True)
        (self.model / "registration.json").write_text(json.dumps({"base_model": "art/nano"}))

    def step(self, step: int, groups: list[list[art.Trajectory]], *, record: bool = True) -> None:
        """Logs a training step with the record of its rollouts."""
        found = [art.TrajectoryGroup(group) for group in groups]
        append_groups(self.model / "trajectories" / "train" / f"{step:04d}.parquet", found)
        rewards = [one.reward for group in groups for one in group if isinstance(one.reward, float)]
        count = sum(map(len, groups))
        self.history(
            step,
            **{
                "train/reward": sum(rewards) / max(1, len(rewards)),
                "loss/entropy": 1 / step,
                "data/sheet/started_rollouts": count + 1,
                "data/sheet/trained_rollouts": count,
                "data/sheet/failed_rollouts": 1,
                "data/sheet/started_tokens": 9 * count,
                "data/sheet/trained_tokens": 9 * count,
                "data/sheet/failed_tokens": 0,
                "time/step_wall_s": 4.5,
                "data/step_trainer_tokens": 9 * count,
                "costs/train/judge/ruler": 0.004,
                "costs/train": 0.004,
                "costs/gpu": 0.001,
                "costs/all": 0.005,
                "costs/cum/all": 0.005 * step,
                "time/step_trainer_s": 0.5,
                "time/step_client_s": 0.1,
                "time/step_sampling_s": 3.0,
                "time/step_gradient_s": 0.8,
                "time/step_canary_s": 0.6,
            },
        )
        if record:
            self.record(step, groups)

    def history(self, step: int, **row: float) -> None:
        append_history_row(self.model / "history.jsonl", {**row, "step": step, "training_step": step})

    def record(self, step: int, groups: list[list[art.Trajectory]]) -> None:
        lines = [
            RolloutRecord(
                rollout=one.rollout_id or f"g{g}.t{t}", group=g, place=t, fate="trained", scenario="s-1",
                reward=one.reward if isinstance(one.reward, float) else None, advantage=0.5 - t, tokens=9,
                policy_steps=(0, 0), samples=[f"{one.rollout_id}-0", f"{one.rollout_id}-1"],
                forks={"edited": 1} if t else {},
                turn_rewards=[one.turn_rewards.get(f"{one.rollout_id}-{k}", 0.0) for k in range(2)]
                if one.turn_rewards
                else [],
                turn_reasons=one.turn_reasons,
                turn_returns=[1.25, 1.0] if one.turn_rewards else [],
                turn_advantages=[0.75, -0.125] if one.turn_rewards else [],
                judge=JudgeNote(
                    name="judge-1", words="It found it.", order=1 - t if t < 2 else t, price_usd=0.002,
                    score=0.75 - 0.5 * t, second=0.25, question=None if t else "Prefer short answers.",
                ),
            ).line()
            for g, group in enumerate(groups)
            for t, one in enumerate(group)
        ]  # fmt: skip
        lines.append(
            RolloutRecord(
                rollout="lost", group=0, place=len(groups[0]), fate="failed",
                failure=RolloutFailure(type="TimeoutError", message="too slow"),
            ).line()
        )  # fmt: skip
        folder = self.model / "steps" / f"{step:04d}"
        folder.mkdir(parents=True)
        (folder / "rollouts.jsonl").write_text("".join(lines))

    def checkpoint(self, step: int) -> None:
        folder = self.model / "checkpoints" / f"{step:04d}"
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text(TOKENIZER)
        (folder / "job.json").write_text(json.dumps({"job_id": f"job-{step}"}))

    def samples(self, texts: dict[str, tuple[str, str]], *, fork: str | None = None) -> None:
        """Writes the ledger: sample id -> its prompt's new text and its completion."""
        (self.root / "server").mkdir(exist_ok=True)
        connection = sqlite3.connect(self.root / "server" / "ledger.sqlite")
        connection.executescript(CREATE)
        for record in sample_records(texts, fork=fork):
            connection.execute(INSERT, to_row(record))
        connection.commit()
        connection.close()

    def tokens(self, step: int, sample: str, count: int) -> None:
        """Writes the record of the tokens of one sample."""
        header = TokenFileHeader(
            job_id="j", step=step, entries=count, samples=[sample], rollouts=["r"], groups=[0]
        )
        columns = {
            "logprob": np.full(count, -0.5, np.float32),
            "entropy": np.linspace(0, 3, count).astype(np.float16),
            "advantage": np.linspace(-2, 2, count).astype(np.float32),
            "ratio": np.linspace(0.5, 1.5, count).astype(np.float32),
            "clipped": np.arange(count) % 2 == 1,
            "masked": np.arange(count) == 0,
            "rollout": np.zeros(count, np.uint8),
            "sample": np.zeros(count, np.uint8),
            "place": np.arange(count, dtype=np.uint16),
        }
        path = self.model / "steps" / f"{step:04d}" / "tokens.safetensors"
        save_file(columns, path, metadata={"header": header.model_dump_json()})


def sample_records(
    texts: dict[str, tuple[str, str]], *, fork: str | None = None, since: float = 0.0
) -> list[SampleRecord]:
    """Sample id -> its prompt's new text and its completion. A second apart."""
    return [
        SampleRecord(
            sample_id=name, rollout_id=name.rpartition("-")[0], project="games", model="player",
            base_model="art/nano", step=0, adapter=None, parent_id=None,
            fork_reason=fork if number else None,
            prompt_ids=array("i", ids_of(prompt)), completion_ids=array("i", [*ids_of(completion), END]),
            completion_logprobs=array("f", [-0.01 - place for place in range(len(ids_of(completion)) + 1)]),
            sampling={}, finish_reason="stop", turn_key=b"", tools_key=b"", created_at=since + number,
        )
        for number, (name, (prompt, completion)) in enumerate(texts.items())
    ]  # fmt: skip


def made_run(root: Path) -> MadeRun:
    """A run of two steps of two groups, with ledger, tokens and checkpoints."""
    run = MadeRun(root)
    for step in (1, 2):
        run.step(
            step,
            [
                [trajectory(f"s{step}a", 0.0, "tea"), trajectory(f"s{step}b", 1.0, "the")],
                [trajectory(f"s{step}c", 1.0, "ten"), trajectory(f"s{step}d", 0.5 * step, "tin")],
            ],
        )
        run.checkpoint(step)
    run.samples({"s2a-0": ("WHO ", "the tea"), "s2a-1": ("A", "caféB")}, fork="edited")
    run.tokens(2, "s2a-1", 7)
    return run


def made_run_of_turns(root: Path) -> MadeRun:
    """A run of one step, with a rollout of whose turns one was rewarded, and one without such rewards."""
    run, played = MadeRun(root), trajectory("r", 1.0, "tea")
    played.reward_turn(2, 0.25, reason="It looked first.")
    played.reward_turn(4, 0.0)
    run.step(1, [[played, trajectory("q", 0.0, "tee")]])
    return run


def begin_job(
    root: Path, job_id: str, *, project: str = "games", name: str = "player", done: int = 0
) -> None:
    """Asks for a job as a server does; with progress it runs."""

    async def write() -> None:
        store = JobStore(root / "server" / "jobs.sqlite")
        request = TrainJobRequest(job_id=job_id, groups=[], optimizer=OptimizerSpec(learning_rate=1.0))
        await store.submit(project, name, request)
        if done:
            await store.progress(job_id, "training", done=done, total=2000)
        await store.close()

    with ThreadPoolExecutor(1) as thread:  # a browser has an event loop in the test's own
        thread.submit(lambda: asyncio.run(write())).result()
