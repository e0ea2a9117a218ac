"""The list of runs: a row each, by the words and tags that find it, and runs of one experiment together.

Runs that differ in nothing but their seed are one experiment. Tags are those of the model's config:
`art.Model(..., config={"tags": ["longer"], "seed": 3})`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from statistics import fmean, stdev
from typing import Any

from art.tracking.nested_settings import named_leaves
from art_extensions.ui.conversation import visible
from art_extensions.ui.curves import sparkline
from art_extensions.ui.run_files import LifeSign, RunFiles, life_sign

_log = logging.getLogger(__name__)

LONGEST_WORDS = 3_000
"""Characters of a run's settings that its search looks at."""
MOST_TAGS = 20
_OWN = frozenset(
    {"id", "name", "entity", "base_path", "report_metrics", "origin", "tags", "step", "kind"}
    | {"inference_base_url", "inference_api_key", "inference_model_name", "run_id"}
)
"""Settings by which two runs of one experiment may differ, beside their seeds."""


def runs_page(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Returns the experiments with their runs, the one that changed last first, and all tags."""
    rows = sorted((_run_row(run) for run in runs), key=lambda row: -row["changed"])
    return {
        "experiments": list(_experiments(rows)),
        "count": len(rows),
        "tags": sorted({tag for row in rows for tag in row["tags"]}),
    }


def shown_life(run: RunFiles) -> LifeSign:
    """Returns the state of a run, or why it cannot be read."""
    problem = run.history.problem
    return life_sign(run) if problem is None else LifeSign("unreadable", problem)


def flatten(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings with one level, as the pages show them.

    >>> flatten({"lora": {"r": 8}})
    {'lora.r': '8'}
    """
    return {name: str(value) for name, value in named_leaves(settings)}


def _run_row(run: RunFiles) -> dict[str, Any]:
    try:
        return _read_run_row(run)
    except Exception as error:  # noqa: BLE001  whatever is wrong with one run, the others are listed
        problem = f"it cannot be read: {type(error).__name__}: {error}"
        _log.warning("run %s: %s", run.key, problem)
    return {
        "run": run,
        "life": LifeSign("unreadable", problem),
        "base_model": "",
        "tags": [],
        "words": "",
        "experiment": None,
        "seeds": {},
        "rewards": {},
        "step": None,
        "reward": None,
        "best": None,
        "line": "",
        "changed": 0.0,
        "age": None,
    }


def _read_run_row(run: RunFiles) -> dict[str, Any]:
    settings = run.settings()
    rewards = {step: row["train/reward"] for step, row in run.history.steps.items() if "train/reward" in row}
    known = list(rewards.values())
    base_model = visible(run.base_model() or "")
    words = " ".join(f"{name.partition('.')[2]}={value}" for name, value in flatten(settings).items())
    experiment, seeds = _experiment(run, settings)
    return {
        "run": run,
        "life": shown_life(run),
        "base_model": base_model,
        "tags": (tags := _tags(settings)),
        "words": visible(" ".join((run.key, base_model, *tags, words)))[:LONGEST_WORDS].lower(),
        "experiment": experiment,
        "seeds": seeds,
        "rewards": rewards,
        "step": max(run.history.steps, default=None),
        "reward": known[-1] if known else None,
        "best": max(known, default=None),
        "line": sparkline(run.history.column("train/reward")),
        "changed": run.last_change(),
        "age": time.time() - run.last_change(),
    }


def _tags(settings: Mapping[str, Any]) -> list[str]:
    """The tags in the config of the program's model."""
    config = settings.get("model", {}).get("config")
    tags = config.get("tags") if isinstance(config, dict) else None
    known = [tags] if isinstance(tags, str) else tags if isinstance(tags, list) else []
    return [visible(tag) for tag in known if isinstance(tag, str) and tag][:MOST_TAGS]


def _experiment(run: RunFiles, settings: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """Returns what a run shares with those of other seeds, None where it names no seed; and its seeds."""
    values = dict(settings)
    if "run" in values:
        values.pop("training", None)  # that of its newest step: the rate of a schedule
    flat = flatten(values)
    seeds = {name: value for name, value in flat.items() if _last(name) == "seed"}
    shared = {name: value for name, value in flat.items() if _last(name) not in _OWN and name not in seeds}
    return (json.dumps([run.project, sorted(shared.items())]) if seeds else None), seeds


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _experiments(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, those of one experiment together where its newest is; `all` sums up several seeds."""
    members: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        members.setdefault(row["experiment"] or row["run"].key, []).append(row)
    for runs in members.values():
        names = list(dict.fromkeys(name for row in runs for name in row["seeds"]))
        differing = [name for name in names if len({row["seeds"].get(name) for row in runs}) > 1]
        if not differing:
            yield from ({"runs": [row], "all": None} for row in runs)
            continue
        known = [visible(" ".join(row["seeds"].get(name, "-") for name in differing)) for row in runs]
        found = [{**row, "seed": seed} for row, seed in zip(runs, known, strict=True)]
        yield {"runs": found, "all": _summary(found)}


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the runs of an experiment, and the curve of their mean."""
    names = list(dict.fromkeys(f"{row['run'].project}/{row['run'].name}" for row in runs))
    steps = sorted({step for row in runs for step in row["rewards"]})
    means = [fmean([row["rewards"][step] for row in runs if step in row["rewards"]]) for step in steps]
    return {
        "name": visible(names[0] if len(names) == 1 else _beginning(names).rstrip("-_. ")),
        "runs": len(runs),
        "seeds": ", ".join(sorted({row["seed"] for row in runs})),
        "line": sparkline(means),
        "reward": _mean_and_spread([row["reward"] for row in runs]),
        "best": _mean_and_spread([row["best"] for row in runs]),
    }


def _beginning(names: Sequence[str]) -> str:
    """Returns the longest beginning that all names share."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _mean_and_spread(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    return (fmean(known) if known else None, stdev(known) if len(known) > 1 else None)
