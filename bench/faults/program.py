"""The program whose runs are disturbed: the guides' loop, with a judge, every request with a seed.

    python bench/faults/program.py '{"path": RUN, "judge": URL, ...}'

One request at a time, each computed from its first token: two undisturbed runs end with the same bytes. It
knows nothing of faults. A line of JSON on standard output names each phase as it begins in the last step, and
one at the end says what was reached, or which error ended the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import art
from art.client.backends.local_server import SupervisorLimits
from art.environments.adapters.registry import find_environment
from art.errors import ARTError
from art.rewards import Rubric
from art.rewards.llm.cache import AnswerCache
from art.rewards.llm.names import resolve_llm
from art.rewards.llm.request import Llm, Reply, Request

PROJECT, NAME = "faults", "player"
STEPS = 2
SCENARIOS, ROLLOUTS = 2, 3
LEAST_TOKENS, MOST_TOKENS = 24, 48
GREEDY = 3
"""Requests of the evaluation."""
MANY = 10_000
OPTIONS: dict[str, Any] = {
    "engine": {"options": {"threads": 1, "reuse_prefixes": False}},
    "trainer": {"options": {"threads": 1}},
    "control": {"replay_steps": 1},
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run is made of.

    path: the folder of the run. sent: the file that names each question as it goes to the judge. recorded:
    the one that names each whose answer the run has on its disk. server: address and key of a server that
    runs already; None: a `LocalBackend`. mcp: the address of an MCP server that each rollout asks.
    environment: that of an environment in which each rollout plays. is_patient: no number of restarts is a
    reason to give up.
    """

    path: str
    judge: str
    judge_key: str
    sent: str
    recorded: str
    server: tuple[str, str] | None = None
    mcp: str | None = None
    environment: str | None = None
    ranks: int = 1
    is_patient: bool = False


def quality(messages: list[dict[str, Any]]) -> float:
    """What the judge knows of a trajectory, 0 to 1."""
    text = str(messages[-1].get("content") or "")
    return (sum(map(ord, text)) % 11) / 10


def note_question(path: Path, messages: Sequence[Mapping[str, Any]]) -> None:
    """Append the question's name and the moment, by the clock that all processes of a machine share."""
    text = json.dumps([[one["role"], one["content"]] for one in messages])
    name = hashlib.sha256(text.encode()).hexdigest()
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps([name, time.monotonic()])}\n")


class NotingLlm:
    """A model that is asked, and notes each question before it is sent, also when it is sent again."""

    def __init__(self, llm: Llm, sent: str) -> None:
        self._llm, self._sent = llm, Path(sent)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def complete(self, request: Request) -> Reply:
        note_question(self._sent, request.messages)
        return await self._llm.complete(request)


class RecordingCache(AnswerCache):
    """One that names each question whose answer is on the disk."""

    def __init__(self, path: str, recorded: str) -> None:
        super().__init__(path)
        self._recorded = Path(recorded)

    def put(self, identity: str, request: Request, reply: Reply) -> None:
        super().put(identity, request, reply)
        if self.get(identity, request) is not None:  # a disk that is full keeps none
            note_question(self._recorded, request.messages)


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Run:
    """One go at the whole loop."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._one_at_a_time = asyncio.Semaphore(1)
        self._is_last = False
        self._told: set[str] = set()
        self._model = art.TrainableModel(
            name=NAME, project=PROJECT, base_model="art/nano-games", base_path=asked.path, report_metrics=[]
        )
        # A user who wants to hear of a judge that is silent within a minute.
        options = {"num_retries": 2}
        judge = resolve_llm("the-judge", base_url=asked.judge, api_key=asked.judge_key, params=options)
        self._judge = Rubric(
            {"good": "The reply is good."},
            NotingLlm(judge, asked.sent),
            cache=RecordingCache(f"{asked.path}/judge.sqlite3", asked.recorded),
            deadline=10.0,
        )
        self._environment: Any = None
        if asked.environment is not None:
            rows = [
                {"responses_create_params": {"input": f"Play {place}."}} for place in range(SCENARIOS + 1)
            ]
            name = f"nemo-gym:{asked.environment}"
            self._environment = find_environment(name, data=rows, val=1, deadline_s=10.0)

    async def make(self) -> None:
        tell(phase="register")
        async with self._backend() as backend:
            await self._model.register(backend)
            tell(phase="registered")
            for step in range(await self._model.get_step(), STEPS):
                self._is_last = step == STEPS - 1
                groups = await art.gather_trajectory_groups(
                    (
                        art.TrajectoryGroup(self._rollout(step, place, at) for at in range(ROLLOUTS))
                        for place in range(SCENARIOS)
                    ),
                    after_each=self._score,
                    pbar_desc=None,
                )
                self._begin("train")
                result = await self._model.train(groups, learning_rate=2e-3)
                self._begin("trained")
                tell(step=result.step)
            self._is_last = True
            self._begin("evaluate")
            replies = [await self._chat(f"evaluate {at}", temperature=0.0) for at in range(GREEDY)]
            step = await self._model.get_step()
            self._begin("shut-down")
        texts = [reply.choices[0].message.content for reply in replies]
        evaluated = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        tell(steps=step, evaluated=evaluated)

    def _backend(self) -> Any:
        if self._asked.server is not None:
            return _closing(art.RemoteBackend(*self._asked.server))
        ranks = {"ranks": self._asked.ranks} if self._asked.ranks > 1 else {}
        options = OPTIONS | {"trainer": OPTIONS["trainer"] | ranks}
        limits = None
        if self._asked.is_patient:
            options["control"] = OPTIONS["control"] | {"restarts": MANY, "job_attempts": MANY}
            limits = SupervisorLimits(restarts=MANY)
        return art.LocalBackend(path=self._asked.path, server_options=options, supervisor_limits=limits)

    def _begin(self, phase: str) -> None:
        """Tell of the phase, when it first begins in the last step."""
        if self._is_last and phase not in self._told:
            self._told.add(phase)
            tell(phase=phase)

    async def _rollout(self, step: int, place: int, at: int) -> art.Trajectory:
        async with self._one_at_a_time:
            question = f"step {step}, scenario {place}"
            if self._asked.mcp is not None:
                if place + at > 0:
                    self._begin("mcp")
                question = await _ask_mcp(self._asked.mcp, place)
            if place + at > 0:
                self._begin("gather")
            seed = (step * SCENARIOS + place) * ROLLOUTS + at
            if self._environment is not None:
                scenario = self._environment.scenarios("train")[place]
                return await self._environment.rollout(
                    self._model, scenario, seed=seed, max_tokens=MOST_TOKENS
                )
            reply = await self._chat(question, temperature=1.0, seed=seed)
            return art.Trajectory(
                messages_and_choices=[{"role": "user", "content": question}, reply.choices[0]], reward=0.0
            )

    async def _chat(self, question: str, **options: Any) -> Any:
        return await self._model.openai_client().chat.completions.create(
            model=self._model.get_inference_name(),
            messages=[{"role": "user", "content": question}],
            max_tokens=MOST_TOKENS,
            extra_body={"min_tokens": LEAST_TOKENS},
            **options,
        )

    async def _score(self, group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        self._begin("judge")
        return await self._judge.score_group(group)


@contextlib.asynccontextmanager
async def _closing(backend: art.RemoteBackend) -> AsyncIterator[art.RemoteBackend]:
    try:
        yield backend
    finally:
        await backend.close()


async def _ask_mcp(address: str, place: int) -> str:
    """Returns what the MCP server says, the beginning of it."""
    from art.mcp import connect

    async with connect(address) as session:
        told = await session.call("list_places", {})
    return f"{place} {str(told)[:40]}"


def main() -> int:
    asked = Asked(**json.loads(sys.argv[1]))
    try:
        asyncio.run(Run(asked).make())
    except Exception as error:
        tell(error=type(error).__name__, ours=isinstance(error, ARTError), message=str(error)[:500])
        raise
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
