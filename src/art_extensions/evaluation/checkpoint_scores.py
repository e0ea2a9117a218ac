"""`art eval`: rollouts of one checkpoint, their means with standard errors, and a row of the model's history.

Rollouts of one scenario are alike: the interval of the reward is over the means of the scenarios, and two
checkpoints are compared scenario by scenario (`paired_difference`).

    with_checkpoint(model, 20)     serves the checkpoint of a data folder: rollouts sample from it
    RolloutSource.of_task(...)     what is rolled out: a built-in task, or a user's function and scenarios

Sampled rollouts are logged as those of `model.log(split="val")`; greedy ones as numbers alone, under
`val/greedy/`, so that the best step is still chosen among equals.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import RootModel

import art
from art.environments import tasks
from art.environments.adapters.environment import load_object
from art.environments.adapters.registry import find_environment
from art.environments.tasks import EVALUATION_SEED
from art.errors import CheckpointMissingError, ConfigurationError, RolloutsFailedError
from art.process.foreign_files import parse_json
from art.runs.comparison import Estimate
from art.runs.folder import ADDED_BY_GATHERING
from art.runs.quickstart import Evaluation
from art.tracking.folders import NamedModel
from art.tracking.model_files import read_json
from art.tracking.rollout_figures import scores
from art.types import known_reward
from art.wire.records import split_bits

Sampling = Literal["sampled", "greedy"]
MODES: dict[str, tuple[Sampling, ...]] = {
    "sampled": ("sampled",),
    "greedy": ("greedy",),
    "both": ("sampled", "greedy"),
}
TASK_ROLLOUTS = 100


@dataclass(frozen=True, kw_only=True)
class RolloutSource:
    """The scenarios of an evaluation and the function that rolls them out."""

    name: str
    scenario: Callable[[int], Any]
    """Returns the scenario of an index."""
    count: int
    """How many scenarios there are; of a task, how many are used by default."""
    endless: bool
    run: Callable[..., Awaitable[Any]]
    """`run(model, scenario)`, with `temperature` and `seed` where `takes` has them."""
    takes: frozenset[str]
    close: Callable[[], Awaitable[None]] | None = None
    """Ends what was started for the rollouts."""

    @classmethod
    def of_environment(cls, name: str, **options: Any) -> RolloutSource:
        """Returns the validation scenarios of an environment by name, made with options. Raises
        ConfigurationError with the known ones, MissingExtraError where its library is not installed.
        """
        environment = find_environment(name, **options)
        scenarios = environment.scenarios("val")
        return cls(
            name=name,
            scenario=scenarios.__getitem__,
            count=len(scenarios),
            endless=False,
            run=environment.rollout,
            takes=frozenset({"temperature", "seed"}),
            close=environment.close,
        )

    @classmethod
    def of_task(cls, name: str) -> RolloutSource:
        """Raises ConfigurationError with the known tasks."""
        task = tasks.find(name)
        return cls(
            name=name,
            scenario=partial(task.scenario, EVALUATION_SEED),
            count=TASK_ROLLOUTS,
            endless=True,
            run=task.rollout,
            takes=frozenset({"temperature", "seed"}),
        )

    @classmethod
    def of_function(cls, function: str, scenarios: str) -> RolloutSource:
        """function: "module:function", found from the current folder. scenarios: "module:name" of a list, or
        a file of JSON lines or of a JSON list. Raises ConfigurationError.
        """
        run = load_object("--rollout", function)
        if not callable(run):
            raise ConfigurationError(f"--rollout {function!r} is {type(run).__name__}, not a function")
        known = read_scenarios(scenarios)
        return cls(
            name=function,
            scenario=known.__getitem__,
            count=len(known),
            endless=False,
            run=run,
            takes=frozenset({"temperature", "seed"} & inspect.signature(run).parameters.keys()),
        )

    async def rollout(self, model: art.Model, index: int, *, seed: int, temperature: float) -> Any:
        """One rollout of the scenario at an index."""
        given = {"temperature": temperature, "seed": seed}
        return await self.run(
            model, self.scenario(index), **{name: given[name] for name in sorted(self.takes)}
        )

    def check_greedy(self) -> None:
        """Raises ConfigurationError where nothing can make the rollouts greedy."""
        if "temperature" not in self.takes:
            raise ConfigurationError(
                f"{self.name} takes no `temperature`, so it cannot be asked for greedy rollouts: add the "
                "parameter and pass it to your completions, or use --sampling sampled"
            )


def read_scenarios(text: str) -> list[Any]:
    """Returns the scenarios of a file, or of "module:name". Raises ConfigurationError."""
    path = Path(text)
    if path.suffix not in (".json", ".jsonl"):
        found = load_object("--scenarios", text)
        known = list(found() if callable(found) else found)
    else:
        try:
            body = path.read_text(encoding="utf-8")
            lines = body.split("\n")
            known = (
                parse_json(body)
                if path.suffix == ".json"
                else [parse_json(line) for line in lines if line.strip()]
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--scenarios {text!r} cannot be read: {error}") from error
    if not isinstance(known, list) or not known:
        raise ConfigurationError(f"--scenarios {text!r} holds no list of scenarios")
    return known


def stored_model(named: NamedModel, data_dir: Path) -> art.TrainableModel[Any, Any]:
    """Returns the model as its program made it, from the files of its folder.

    Raises CheckpointMissingError where no file describes it.
    """
    saved = read_json(named.files.path / "model.json")
    registration = read_json(named.files.path / "registration.json")
    if saved is None and registration is None:
        raise CheckpointMissingError(
            f"{named.files.path} has neither model.json nor registration.json: nothing says how to serve the "
            "model"
        )
    saved = saved if saved and saved.get("base_model") else described_by(registration or {})
    config = saved.get("config")
    return art.TrainableModel(
        name=saved.get("name") or named.name,
        run_name=named.name if saved.get("run_name") else None,
        project=named.project,
        base_model=saved["base_model"],
        config=None if config is None else RootModel[Any](config),
        base_path=str(data_dir),
        report_metrics=saved.get("report_metrics"),
        _internal_config=saved.get("_internal_config"),
        **{name: saved[name] for name in ("entity", "id", "run_id") if saved.get(name)},
    )


def described_by(registration: dict[str, Any]) -> dict[str, Any]:
    """Returns what a program would have said to register the model so."""
    base, bits = split_bits(registration["base_model"])
    weights = {
        "full_finetuning": registration.get("lora") is None,
        **({f"load_in_{bits}bit": True} if bits < 16 else {}),
    }
    length = registration.get("max_context")
    serving = ("chat_template", "chat_template_kwargs", "special_tokens_in_text", "tool_format")
    config = {name: registration[name] for name in serving if registration.get(name)}
    config["init_args"] = weights if length is None else {**weights, "max_seq_length": length}
    return {"base_model": base, "_internal_config": config}


@asynccontextmanager
async def with_checkpoint(
    named: NamedModel, step: int, data_dir: Path
) -> AsyncIterator[art.TrainableModel[Any, Any]]:
    """Serves a model of a data folder; inside the block `get_inference_name()` is the checkpoint's."""
    model = stored_model(named, data_dir)
    async with art.LocalBackend(path=data_dir) as backend:
        backend.resumes_jobs = False
        await model.register(backend)
        async with backend.adapter_lease(model, step):
            yield model


@dataclass(frozen=True, kw_only=True)
class CheckpointScore:
    """Means over the rollouts of one checkpoint that were scored."""

    evaluation: Evaluation
    failed: int
    """Rollouts that ended with an error."""
    unscored: int
    reward: Estimate | None = None
    """The estimate of a scenario's mean reward; None: nothing was scored."""
    pass_at: dict[int, float] = field(default_factory=dict)
    """k -> how probable it is that one of k rollouts of a scenario succeeds."""
    scenarios: tuple[float | None, ...] = ()
    """The mean reward of each scenario, None where none of its rollouts was scored."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "rollouts": self.evaluation.rollouts,
            "failed": self.failed,
            "unscored": self.unscored,
            "means": self.evaluation.means,
            "standard_errors": self.evaluation.errors,
            "reward_by_scenario": None if self.reward is None else asdict(self.reward),
            "pass_at": self.pass_at,
        }


def pass_at_k(successes: int, rollouts: int, k: int) -> float:
    """Returns the probability that one of `k` rollouts succeeds, of which `successes` of `rollouts` did: the
    unbiased estimator of Chen et al. 2021 (arXiv:2107.03374), 1 - C(n - c, k) / C(n, k).

    >>> pass_at_k(1, 4, 1), pass_at_k(1, 4, 2), pass_at_k(3, 4, 2)
    (0.25, 0.5, 1.0)
    """
    if not 1 <= k <= rollouts:
        raise ValueError(f"pass@{k} of {rollouts} rollouts: k is 1 to the number of rollouts")
    return 1.0 - math.comb(rollouts - successes, k) / math.comb(rollouts, k)


def paired_difference(before: CheckpointScore, after: CheckpointScore) -> Estimate | None:
    """Returns the mean difference of the scenarios' rewards, `after` less `before`, with a 95 % interval by
    Student's t over the scenarios that both have scored; None without any.
    """
    pairs = zip(before.scenarios, after.scenarios, strict=True)
    return Estimate.from_pairs([(old, new) for old, new in pairs if old is not None and new is not None])


async def evaluate(
    model: art.TrainableModel[Any, Any],
    source: RolloutSource,
    *,
    rollouts: int,
    temperature: float,
    concurrency: int,
    seed: int,
    each: int = 1,
    success: float = 1.0,
    title: str | None = "evaluate",
) -> tuple[CheckpointScore, list[art.TrajectoryGroup]]:
    """Rolls out the scenarios in turn, until there are so many rollouts. The same seed asks for the same
    sampling.

    each: rollouts of a scenario, at least. success: the reward from which on a rollout succeeds. Returns the
    score, and the rollouts, a group for each scenario. Raises RolloutsFailedError where none was
    scored.
    """
    slots = asyncio.Semaphore(concurrency)
    scenarios = max(1, rollouts // each)
    scenarios = scenarios if source.endless else min(scenarios, source.count)

    async def run_in_slot(place: int) -> Any:
        async with slots:
            return await source.rollout(model, place % scenarios, seed=seed + place, temperature=temperature)

    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(
                [run_in_slot(place) for place in range(index, rollouts, scenarios)],
                metadata={"scenario_index": index},
            )
            for index in range(scenarios)
        ],
        pbar_desc=title,
        max_exceptions=rollouts,
    )
    return score_of(groups, success=success), groups


def score_of(groups: Sequence[art.TrajectoryGroup], *, success: float = 1.0) -> CheckpointScore:
    """Returns the score of rollouts, a group for each scenario. Raises RolloutsFailedError where no rollout
    was scored.
    """
    rollouts = [one for group in groups for one in group]
    errors = [error for group in groups for error in group.exceptions]
    rows = [
        {
            "reward": reward,
            **{name: float(value) for name, value in one.metrics.items() if name not in ADDED_BY_GATHERING},
        }
        for one in rollouts
        if (reward := known_reward(one)) is not None
    ]
    if not rows:
        first = f": {errors[0].type}: {errors[0].message}" if errors else ""
        raise RolloutsFailedError(f"none of {len(rollouts) + len(errors)} rollouts has a reward{first}")
    rewards = [scores(group) for group in groups]
    means = tuple(fmean(scored) if scored else None for scored in rewards)
    return CheckpointScore(
        evaluation=Evaluation.from_rows(rows),
        failed=len(errors),
        unscored=len(rollouts) - len(rows),
        reward=Estimate.from_scores([mean for mean in means if mean is not None]),
        pass_at=_pass_at(rewards, success),
        scenarios=means,
    )


def _pass_at(rewards: Sequence[Sequence[float]], success: float) -> dict[int, float]:
    """Means over the scenarios that have k scored rollouts, for 1, 2, 4, ... and the most that all have."""
    counts = [(sum(one >= success for one in scored), len(scored)) for scored in rewards if scored]
    most = min(count for _, count in counts)
    ks = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power <= most)})
    return {k: fmean(pass_at_k(good, count, k) for good, count in counts) for k in ks}


async def log_score(
    model: art.TrainableModel[Any, Any],
    sampling: Sampling,
    score: CheckpointScore,
    groups: Sequence[art.TrajectoryGroup],
    *,
    split: str,
    step: int,
) -> None:
    """Adds a row to the model's history, with the sampled rollouts beside it."""
    if sampling == "sampled":
        await model.log(groups, split=split, step=step)
    else:
        means = score.evaluation.means
        await model.log(split=split, metrics={f"greedy/{name}": means[name] for name in means}, step=step)
