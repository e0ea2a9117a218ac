"""What each page shows: one function a page, which returns the values of its template."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from art.errors import ARTError
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import SHOW
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.conversation import (
    LONGEST_SHOWN,
    common_turns,
    reward_of,
    show_turns,
    unusual_turns,
    visible,
    with_credit,
    without_credit,
)
from art_extensions.ui.curves import (
    Curve,
    RewardStatistics,
    chart_json,
    costs_of,
    drawn_of,
    metric_chart,
    sheet_of,
    small_charts,
    smooth,
)
from art_extensions.ui.index import ListQuery
from art_extensions.ui.lineage import lineage_of
from art_extensions.ui.rollout_rows import ListedRollout
from art_extensions.ui.run_files import RunFiles
from art_extensions.ui.run_list import flatten, shown_life
from art_extensions.ui.run_reader import RunReader
from art_extensions.ui.step_seconds import nested_seconds, overlapping_seconds, seconds_picture
from art_extensions.ui.tokens import SIGNALS, samples_of_rollout, show_samples

USED = (
    ("data/step_trainer_tokens", "Trained tokens", ""),
    ("data/sheet/started_tokens", "Sampled tokens", ""),
    ("time/step_trainer_s", "Gradient", "s"),
    ("time/step_wall_s", "Wall clock", "s"),
)
"""Metric, title and unit of what a step uses beside money."""
MOST_TOKENS = 32_000
"""Coloured tokens of a page."""
MOST_COLUMNS = 32
"""Rollouts of a group side by side."""
MOST_STEPS = 6
"""Steps of a finding that have a link each."""
FAR_OPINIONS = 0.25
"""The difference of two scores of a judge from which on they are marked."""
FIRST_STEPS = 500
"""The newest steps that the table of a run's page has at first."""
SMOOTHING = (0.0, 0.6, 0.9)
_NAMES = frozenset(f"{file}.{name}" for file in ("model", "registration") for name in ("project", "name"))
"""Settings by which runs are told apart anyway."""


def run_page(
    reader: RunReader, run: RunFiles, *, exported: bool = False, all_steps: bool = False
) -> dict[str, Any]:
    """Returns curves, steps, checkpoints and settings of a run. exported: with the charts of all metrics, and
    all steps. all_steps: the table has all steps, not the newest `FIRST_STEPS`.
    """
    index = reader.index(run)
    index.refresh(run)
    splits = run.splits
    steps = run.history.steps
    statistics = RewardStatistics.of_run(run, index)
    curves = statistics.curves()
    known = sorted({*steps, *splits.get("train", ())}, reverse=True)
    shown = known if exported or all_steps else known[:FIRST_STEPS]
    rows = [_step_row(step, steps.get(step, {}), statistics) for step in shown]
    newest, held_out = (
        next((step for step in known if name in steps.get(step, {})), None)
        for name in ("train/reward", "val/reward")
    )
    if newest is None:
        newest = known[0] if known else None
    return {
        "life": shown_life(run),
        "findings": _findings(reader, run),
        "base_model": visible(run.base_model() or ""),
        "splits": splits,
        "last": None if newest is None else _step_row(newest, steps.get(newest, {}), statistics),
        "held_out": None if held_out is None else _step_row(held_out, steps[held_out], statistics),
        "reward_chart": chart_json(list(steps), curves, "Reward") if curves else None,
        "charts": small_charts(run),
        "metrics": (names := [visible(name) for name in run.history.names()]),
        "all_charts": {name: metric_chart(run, name) for name in names} if exported else None,
        "seconds": seconds_picture(run),
        "steps": rows,
        "step_count": len(known),
        "checkpoints": run.checkpoints()[::-1],
        "lineage": lineage_of(run, list((reader.runs() | {run.key: run}).values())),
        "settings": {name: _shown_settings(value) for name, value in run.settings().items()},
        "changed": run.last_change(),
        "recorded": reader.index(run).count(ListQuery(run=run.key)),
    }


def costs_page(run: RunFiles) -> dict[str, Any]:
    """Returns what each step of a run cost, in dollars, tokens and seconds, with their sums."""
    rows = run.history.steps
    costs = {step: {visible(kind): usd for kind, usd in costs_of(row).items()} for step, row in rows.items()}
    kinds = list(dict.fromkeys(kind for row in costs.values() for kind in row))
    totals = {kind: sum(row.get(kind, 0.0) for row in costs.values()) for kind in kinds}
    sums, spent = [], 0.0
    for row in costs.values():
        spent += sum(row.values())
        sums.append(spent)
    used = {title: run.history.column(name) for name, title, _ in USED}
    return {
        "kinds": sorted(kinds, key=lambda kind: -totals[kind]),
        "totals": totals,
        "spent": spent if kinds else None,
        "chart": chart_json(list(rows), [Curve("spent, US dollars", list(sums))], "Costs") if kinds else None,
        "used": [
            {"title": title, "unit": unit, "sum": sum(value for value in used[title] if value is not None)}
            for _, title, unit in USED
            if any(value is not None for value in used[title])
        ],
        "steps": [
            {"step": step, "costs": costs[step], "used": [row.get(name) for name, _, _ in USED]}
            for step, row in sorted(rows.items(), reverse=True)
        ],
        "columns": USED,
    }


def _findings(reader: RunReader, run: RunFiles, step: int | None = None) -> list[dict[str, Any]]:
    """Returns what `art explain` finds. step: only what it finds in this one."""
    explanation = reader.explanation(run)
    found = explanation.findings if explanation is not None else ()
    return [
        {
            "stage": one.stage,
            "first": one is found[0],
            "words": visible(one.sentence()),
            "change": one.change,
            "steps": one.steps if len(one.steps) <= MOST_STEPS else (one.steps[0], one.steps[-1]),
            "whole": len(one.steps) <= MOST_STEPS,
            "examples": [part for part in one.examples if step in (None, part.step)],
        }
        for one in found
        if step is None or step in one.steps
    ]


def _step_row(
    step: int, row: Mapping[str, float], statistics: RewardStatistics, split: str = "train"
) -> dict[str, Any]:
    return {
        "step": step,
        "reward": row.get(f"{split}/reward"),
        "interval": statistics.interval(split, step),
        "validation": row.get("val/reward"),
        "spread": row.get("train/reward_std_dev"),
        "trained": _count(row.get("data/sheet/trained_rollouts")),
        "started": _count(row.get("data/sheet/started_rollouts")),
        "tokens": _count(row.get("data/step_trainer_tokens")),
        "entropy": row.get("loss/entropy"),
        "rate": row.get("loss/learning_rate"),
        "seconds": row.get("time/step_wall_s"),
        "cost": row.get("costs/cum/all"),
    }


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def step_page(
    reader: RunReader, run: RunFiles, split: str, step: int, *, exported: bool = False
) -> dict[str, Any]:
    """Returns accounting, times, groups and rollouts of a step. exported: with all rows of the list."""
    index = reader.index(run)
    version = index.refresh(run)
    query = ListQuery(run=run.key, split=split, step=step)
    rows = index.rows(query)
    steps = sorted({*run.splits.get(split, ()), *(run.history.steps if split == "train" else ())})
    place = steps.index(step)
    row = run.history.steps.get(step, {})
    sheet = sheet_of(row) if split == "train" else {}
    times = nested_seconds(row) if split == "train" else []
    rewards = [one.reward for one in rows if one.reward is not None]
    return {
        "split": split,
        "step": step,
        "findings": _findings(reader, run, step) if split == "train" else [],
        "before": steps[place - 1] if place else None,
        "after": steps[place + 1] if place + 1 < len(steps) else None,
        "row": _step_row(step, row, RewardStatistics.of_run(run, index), split),
        "mean": fmean(rewards) if rewards else None,
        "sheet": sheet,
        "bars": _bars(sheet),
        "drawn": drawn_of(row) if split == "train" else {},
        "times": times,
        "further_times": overlapping_seconds(row) if split == "train" else [],
        "groups": _group_strips(rows),
        "problem": _log_problem(reader, run, split, step) if not rows else None,
        "metrics": sorted(row.items()),
        "replay": _replay_command(run, step) if split == "train" and run.viewer.tenant is None else None,
        **reader.list_of(run, query, version, exported=exported),
    }


def _replay_command(run: RunFiles, step: int) -> str:
    """Returns what does the step again in a terminal."""
    words = ("art", "replay", f"{run.project}/{run.name}", str(step), "--data-dir", str(run.data_dir))
    return visible(shlex.join(words))


def _bars(sheet: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Fates as pieces of a bar of 1000."""
    total = sheet.get("started", {}).get("rollouts", 0)
    pieces, at = [], 0.0
    for fate, numbers in sheet.items():
        if fate == "started" or not total or not numbers["rollouts"]:
            continue
        width = 1000 * numbers["rollouts"] / total
        pieces.append({"fate": fate, "x": round(at, 2), "width": round(width, 2), **numbers})
        at += width
    return pieces


def _group_strips(rows: Sequence[ListedRollout]) -> list[dict[str, Any]]:
    """Groups with a square for each rollout, whose class says where its reward lies among all of the step."""
    rewards = [row.reward for row in rows if row.reward is not None]
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    groups: dict[int, list[ListedRollout]] = {}
    for row in rows:
        groups.setdefault(row.grp, []).append(row)
    return [
        {
            "group": group,
            "what": visible(" · ".join(filter(None, (ours[0].scenario, ours[0].about)))),
            "size": len(ours),
            "mean": fmean(known)
            if (known := [one.reward for one in ours if one.reward is not None])
            else None,
            "spread": pstdev(known) if known else None,
            "squares": [{"row": one, "level": _level(one.reward, lowest, highest)} for one in ours],
        }
        for group, ours in sorted(groups.items())
    ]


def _level(reward: float | None, lowest: float, highest: float) -> str:
    """The class of a reward's square: q0 to q4, or none."""
    if reward is None:
        return "none"
    share = (reward - lowest) / (highest - lowest) if highest > lowest else 0.5
    return f"q{min(4, int(share * 5))}"


def _log_problem(reader: RunReader, run: RunFiles, split: str, step: int) -> str | None:
    """Returns the reason why the log of a step cannot be shown."""
    try:
        reader.group(run, split, step, 0)
    except ARTError as error:
        return visible(error)
    return None


def group_page(reader: RunReader, run: RunFiles, split: str, step: int, group: int) -> dict[str, Any]:
    """Returns the rollouts of a group side by side: how all begin, then what differs."""
    index = reader.index(run)
    index.refresh(run)
    rows = index.rows(ListQuery(run=run.key, split=split, step=step, group=group))
    if not rows:
        raise HTTPException(404, f"Step {step} of {split} has no group {group} that is recorded.")
    numbers = sorted({row.grp for row in index.rows(ListQuery(run=run.key, split=split, step=step))})
    found = reader.group(run, split, step, group)
    shown = rows[:MOST_COLUMNS]
    records = reader.records(run, step) if split == "train" else []
    recorded = {(one.group, one.place): one for one in records}
    ours = [_logged(found, row) for row in shown]
    turns = [
        with_credit(show_turns(one), one, recorded.get((group, row.place))) if one else []
        for one, row in zip(ours, shown, strict=True)
    ]
    same = common_turns([one for one in turns if one])
    first = next((one for one in turns if one), [])
    place = numbers.index(group)
    compared = _compared_metrics(found, shown)
    differing = [line for line in compared if line["differs"] and line["name"] not in ("turns", "reward")]

    return {
        "split": split,
        "step": step,
        "group": group,
        "before": numbers[place - 1] if place else None,
        "after": numbers[place + 1] if place + 1 < len(numbers) else None,
        "rows": rows,
        "common": [without_credit(one) for one in first[:same]],
        "columns": [
            {
                "row": row,
                "turns": list(zip(said[same:], unusual_turns(turns, at)[same:], strict=True)),
                "logged": bool(said),
                "shown": _shown_by_task(_logged(found, row)),
                "metrics": [(line["name"], line["cells"][at]) for line in differing],
            }
            for at, (row, said) in enumerate(zip(shown, turns, strict=True))
        ],
        "omitted": len(rows) - len(shown),
        "rewards": [row.reward for row in rows if row.reward is not None],
        "facts": _facts(found),
        "judging": _judging(records, rows) if split == "train" else None,
        "logs": [visible(line) for line in found.logs] if found is not None else [],
        "exceptions": [visible(f"{one.type}: {one.message}") for one in found.exceptions] if found else [],
    }


def _judging(records: Sequence[RolloutRecord], rows: Sequence[ListedRollout]) -> dict[str, Any] | None:
    """Returns the judge's question about a group and its answer, in the order in which it was shown the
    rollouts; None where no judge was asked.
    """
    places = {row.rollout: row.place for row in rows}
    judged = [(places[one.rollout], one.judge) for one in records if one.rollout in places and one.judge]
    if not judged:
        return None
    notes = [note for _, note in judged]
    prices = [note.price_usd for note in notes if note.price_usd is not None]
    names = dict.fromkeys(visible(note.name) for note in notes if note.name)
    shown = sorted(judged, key=lambda pair: (pair[1].order is None, pair[1].order or 0, pair[0]))
    return {
        "names": ", ".join(names) or "not recorded",
        "question": next((visible(note.question) for note in notes if note.question), None),
        "price": sum(prices) if prices else None,
        "second": any(note.second is not None for note in notes),
        "answers": [
            {
                "place": place,
                "order": None if note.order is None else note.order + 1,
                "score": note.score,
                "second": note.second,
                "differs": _far(note.score, note.second),
                "words": visible(note.words) if note.words else None,
            }
            for place, note in shown
        ],
    }


def _far(score: float | None, second: float | None) -> bool:
    """Returns whether two opinions of one judge are so different that a reader should look."""
    return score is not None and second is not None and abs(score - second) >= FAR_OPINIONS


def _logged(group: TrajectoryGroup | None, row: ListedRollout) -> Trajectory | None:
    if group is None or not row.logged or row.place >= len(group.trajectories):
        return None
    return group.trajectories[row.place]


def _facts(found: Trajectory | TrajectoryGroup | None) -> list[tuple[str, str]]:
    values: dict[str, object] = {**found.metadata} if found is not None else {}
    return [(visible(name), visible(_as_words(value))) for name, value in values.items() if name != SHOW]


def _as_words(value: object) -> object:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


def _shown_by_task(found: Trajectory | None) -> str | None:
    """Returns the rollout as its program shows it to people."""
    text = found.metadata.get(SHOW) if found is not None else None
    return visible(text)[:LONGEST_SHOWN] if isinstance(text, str) and text.strip() else None


def _compared_metrics(found: TrajectoryGroup | None, rows: Sequence[ListedRollout]) -> list[dict[str, Any]]:
    """One line for each metric of the rollouts, with a cell for each."""
    ours = [_logged(found, row) for row in rows]
    names = list(dict.fromkeys(name for one in ours if one for name in one.metrics))
    lines = []
    for name in names:
        cells = [one.metrics.get(name) if one else None for one in ours]
        lines.append(
            {"name": visible(name), "cells": cells, "differs": len({str(cell) for cell in cells}) > 1}
        )
    return lines


def rollout_page(
    reader: RunReader, run: RunFiles, split: str, step: int, group: int, place: int
) -> dict[str, Any]:
    """Returns a rollout as a conversation and as tokens, with what the judge said and where it forked."""
    index = reader.index(run)
    index.refresh(run)
    rows = index.rows(ListQuery(run=run.key, split=split, step=step, group=group))
    row = next((one for one in rows if one.place == place), None)
    if row is None:
        raise HTTPException(404, f"Group {group} of step {step} has no rollout {place} that is recorded.")
    places = [one.place for one in rows]
    at = places.index(place)
    found = reader.trajectory(run, split, step, group, place) if row.logged else None
    turns = show_turns(found) if found is not None else []
    record = reader.record(run, step, group, row) if split == "train" else None
    turns = with_credit(turns, found, record)
    ids = list(record.samples) if record is not None else [one.sample for one in turns if one.sample]
    if not ids and row.rollout:
        ids = samples_of_rollout(run, row.rollout)
    samples = show_samples(run, step if split == "train" else None, ids)
    tokens = sum(len(one.tokens) for one in samples)
    return {
        "split": split,
        "step": step,
        "group": group,
        "place": place,
        "before": places[at - 1] if at else None,
        "after": places[at + 1] if at + 1 < len(places) else None,
        "row": row,
        "record": record,
        "turns": turns,
        "histories": 1 + max((one.history for one in turns), default=0),
        "reward": reward_of(found) if found is not None else (row.reward, row.unscored),
        "parts_of_reward": _reward_parts(found, record),
        "facts": _facts(found),
        "shown": _shown_by_task(found),
        "judge": _judge_lines(found, record),
        "logs": [visible(line) for line in found.logs] if found is not None else [],
        "samples": samples if tokens <= MOST_TOKENS else [],
        "missing_samples": len(ids) - len(samples),
        "known_samples": len(ids),
        "token_count": tokens,
        "most_tokens": MOST_TOKENS,
        "signals": [one for one in SIGNALS if one == "logprob" or _has_signal(samples, one)],
        "forks": [one for one in samples if one.ledger.fork],
    }


def _reward_parts(found: Trajectory | None, record: Any) -> list[tuple[str, Any]]:
    parts = (
        dict(found.metrics) if found is not None else dict(record.reward_parts) if record is not None else {}
    )
    return [(visible(name), value) for name, value in parts.items()]


def _judge_lines(found: Trajectory | None, record: Any) -> list[tuple[str, str]]:
    """Returns the judges and their words on the rollout."""
    lines: list[tuple[str, str]] = []
    if record is not None and record.judge is not None and record.judge.words:
        lines.append((visible(record.judge.name or "judge"), visible(record.judge.words)))
    for line in found.logs if found is not None else ():
        head, colon, words = line.partition(" explanation:")
        if colon and not any(words.strip() == visible(known) for _, known in lines):
            lines.append((visible(head), visible(words.strip())))
    return lines


def _has_signal(samples: Sequence[Any], name: str) -> bool:
    return any(name in token.numbers for one in samples for token in one.tokens)


def compare_page(reader: RunReader, runs: Sequence[RunFiles], asked: QueryParams) -> dict[str, Any]:
    """Returns the curves of several runs for one metric, smoothed as asked."""
    metrics = sorted({name for run in runs for name in run.history.names()})
    metric = asked.get("metric") or "train/reward"
    weight = float(asked["smooth"]) if asked.get("smooth") in [str(one) for one in SMOOTHING] else 0.0
    steps = sorted({step for run in runs for step in run.history.steps})
    curves = []
    for run in runs:
        values: list[float | None] = [run.history.steps.get(step, {}).get(metric) for step in steps]
        curve = Curve(visible(run.key), smooth(values, weight))
        if metric == "train/reward":
            index = reader.index(run)
            index.refresh(run)
            curve = _on_steps(curve, RewardStatistics.of_run(run, index), steps)
        curves.append(curve)
    return {
        "chosen": list(runs),
        "metric": metric,
        "metrics": metrics,
        "smoothing": SMOOTHING,
        "weight": weight,
        "chart": chart_json(steps, curves, metric) if curves and steps else None,
        **_compared_settings(runs),
    }


def _on_steps(curve: Curve, statistics: RewardStatistics, steps: Sequence[int]) -> Curve:
    """The curve with the band of the run's rewards, moved to its smoothed values."""
    lowest, highest = statistics.within
    low: list[float | None] = []
    high: list[float | None] = []
    for step, value in zip(steps, curve.values, strict=True):
        ends = statistics.interval("train", step)
        if value is None or ends is None:
            low.append(None)
            high.append(None)
            continue
        mean = statistics.steps[step]["train/reward"]
        low.append(max(lowest, value - (mean - ends[0])))
        high.append(min(highest, value + (ends[1] - mean)))
    return Curve(curve.label, curve.values, low, high)


def _shown_settings(value: dict[str, Any]) -> list[tuple[str, str]]:
    return [(visible(name), visible(text)) for name, text in flatten(value).items()]


def _compared_settings(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Returns the settings that not all runs share, with the value of each, and how many are the same."""
    flat = [flatten(run.settings()) for run in runs]
    names = [name for name in dict.fromkeys(name for one in flat for name in one) if name not in _NAMES]
    cells = [(visible(name), [visible(one.get(name, "")) for one in flat]) for name in names]
    differing = [(name, values) for name, values in cells if len(set(values)) > 1]
    return {"differences": differing, "same_settings": len(cells) - len(differing)}
