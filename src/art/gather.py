"""Gather rollouts: run them all, show how it goes, forgive as many failures as allowed."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Literal, TypeVar, cast, overload

from art.errors import ConfigurationError
from art.gather_context import GatherContext, gather_context_var, get_gather_context, set_gather_context
from art.rollout_tasks import close_unstarted, in_rollout, run_side_by_side, task_failure
from art.tracking.progress import open_progress
from art.tracking.rollout_figures import has_signal
from art.trajectories import (
    MetadataValue,
    PendingGroup,
    PydanticException,
    Trajectory,
    TrajectoryGroup,
    gathered,
    record_metrics,
)
from art.types import function_name, kind_of, no_trajectory

__all__ = [
    "GatherContext",
    "gather_context_var",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_gather_context",
    "record_metrics",
    "set_gather_context",
    "trajectory_group",
    "wrap_group_awaitable",
    "wrap_trajectories_awaitable",
]

_log = logging.getLogger(__name__)

AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]
GroupWork = Awaitable[TrajectoryGroup | Iterable[Trajectory]]
Refill = Callable[[], GroupWork | None] | Iterable[GroupWork]
REFILLS_PER_GROUP = 3
"""The most further groups, for each group that is wanted."""
GroupT = TypeVar("GroupT", bound=Iterable[Trajectory | BaseException])


async def gather_trajectory_groups(
    groups: Iterable[GroupWork],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
    refill: Refill | None = None,
    max_refills: int | None = None,
    has_signal: Callable[[TrajectoryGroup], bool] = has_signal,
) -> list[TrajectoryGroup]:
    """Runs the rollouts of all groups concurrently; returns the groups in the given order.

    groups: groups of coroutines, or coroutines that return a group or several trajectories (a group of them).
    max_exceptions: failed rollouts that are forgiven, a number or (0 < x < 1) a share; one more raises its
    error, cancels all other rollouts and waits for them. Groups keep the exceptions of their failed rollouts.
    after_each: called with each group as it completes; returns the group, None (drop it) or a list of groups.
    pbar_desc: None for no progress bar. max_metrics: how many means the bar shows.
    refill: gives further groups (a function that returns one or None, or an iterable), which replace those
    without a signal, at most `max_refills` (by default three for each group): dynamic sampling, arXiv
    2503.14476. `train` counts the replaced groups as `replaced`. A group that nothing replaces stays.
    has_signal: by default, whether rewards of the group differ.

    Raises ConfigurationError for `max_refills` below 0 or without `refill`.
    """
    _warn_without_effect(pbar_total_completion_tokens)
    items = gathered(groups, "gather_trajectory_groups()")
    total = sum(_size(item) for item in items)
    further = _Refills(refill, max_refills, len(items), has_signal)
    context = GatherContext(max_exceptions=max_exceptions, max_metrics=max_metrics, total=total)
    results: list[list[TrajectoryGroup]] = [[] for _ in items]
    left_out = 0

    async def forward(item: Any) -> list[TrajectoryGroup]:
        return await further.replace_silent(await run(item), run)

    async def run(item: Any) -> list[TrajectoryGroup]:
        group = as_group(await wrap_group_awaitable(item))
        if group is None or after_each is None:
            return [] if group is None else [group]
        nonlocal left_out
        judged = await after_each(group)
        left_out += judged is None
        return judged if isinstance(judged, list) else [] if judged is None else [judged]

    def on_end(index: int, task: asyncio.Task[list[TrajectoryGroup]]) -> None:
        if (error := task_failure(task)) is not None:
            raise error
        results[index] = task.result()

    shown = total if refill is None else None  # nobody knows how many it will be
    with open_progress(pbar_desc, shown) as context.pbar, set_gather_context(context), further:
        await run_side_by_side(items, forward, on_end)
    context.failures.log_count(context.total)
    if left_out:
        _log.info("after_each left %d of %d groups out", left_out, len(items))
    return [group for kept in results for group in kept]


class _Refills:
    """The further groups of one gather, up to their bound."""

    def __init__(
        self,
        refill: Refill | None,
        most: int | None,
        wanted: int,
        has_signal: Callable[[TrajectoryGroup], bool],
    ) -> None:
        if most is not None and (refill is None or most < 0):
            raise ConfigurationError(
                f"gather_trajectory_groups(max_refills={most!r}): it is 0 or more, and bounds the groups of "
                "`refill`"
            )
        self._source, self._wanted, self._has_signal = refill, wanted, has_signal
        self._rest = iter(()) if refill is None else iter(refill, None) if callable(refill) else iter(refill)
        self._most, self._taken = REFILLS_PER_GROUP * wanted if most is None else most, 0

    async def replace_silent(
        self, kept: list[TrajectoryGroup], run: Callable[[Any], Awaitable[list[TrajectoryGroup]]]
    ) -> list[TrajectoryGroup]:
        """Runs further groups until one has a signal. Returns it with those it replaces, or the last."""
        replaced: list[TrajectoryGroup] = []
        while self._source is not None and not any(map(self._has_signal, kept)):
            further = next(self._rest, None) if self._taken < self._most else None
            if further is None:
                break
            self._taken += 1
            get_gather_context().total += _size(further)
            replaced += kept
            kept = await run(further)
        kept = kept or replaced[-1:]
        for group in kept[:1]:
            group._replaced += [one for one in replaced if one is not group]
        return kept

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        """Drops the groups of a list that were not needed."""
        for item in self._rest if isinstance(self._source, list | tuple) else ():
            close_unstarted(item)
        if self._taken:
            _log.info("%d further groups for %d without a signal", self._taken, self._wanted)


async def trajectory_group(
    items: Iterable[Trajectory | Awaitable[Trajectory]],
    *,
    exceptions: Iterable[BaseException | PydanticException] = (),
    metadata: dict[str, MetadataValue] | None = None,
    metrics: dict[str, float | int | bool] | None = None,
    logs: list[str] | None = None,
    return_exceptions: bool = False,
) -> TrajectoryGroup:
    """Runs the rollouts of one scenario side by side; returns their group, in the given order.

    An awaitable that is given twice runs once and is in the group twice. The first error is raised, and the
    other rollouts are cancelled; with return_exceptions each error is one of the group's `exceptions`.
    """
    results: list[Any] = gathered(items, "trajectory_group()")
    places: dict[int, list[int]] = {}
    for place, item in enumerate(results):
        if isawaitable(item):
            places.setdefault(id(item), []).append(place)
    waiting = [results[same[0]] for same in places.values()]

    def on_end(position: int, task: asyncio.Task[Any]) -> None:
        error = task_failure(task)
        if error is None and not isinstance(task.result(), Trajectory):
            error = no_trajectory(task.result(), function_name(waiting[position]))
        if error is not None and not return_exceptions:
            raise error
        for place in places[id(waiting[position])]:
            results[place] = error if error is not None else task.result()

    await run_side_by_side(waiting, in_rollout, on_end)
    return TrajectoryGroup(results, exceptions=exceptions, metadata=metadata, metrics=metrics, logs=logs)


async def wrap_group_awaitable(awaitable: Awaitable[GroupT] | TrajectoryGroup) -> GroupT | None:
    """Awaits one group, or several trajectories, and counts them in the current context.

    Gives what was awaited (a generator as a list); None when it failed and was forgiven.
    """
    if isinstance(awaitable, PendingGroup):
        return cast(GroupT, await awaitable)  # counts its rollouts itself
    context = get_gather_context()
    inner = replace(context, increment_pbar=False, counted=False)  # the counters themselves are shared
    try:
        with set_gather_context(inner):
            given = awaitable if isinstance(awaitable, TrajectoryGroup) else await awaitable
            group = _group(given, function_name(awaitable))
        if not inner.counted:
            for trajectory in group:
                if isinstance(trajectory, Trajectory):
                    record_metrics(context, trajectory)
            for failure in _failures(group):
                context.metric_sums["exceptions"] += 1
                context.failures.add(failure)
    except Exception as error:  # noqa: BLE001 - the user's code: any error is a failed group, counted and limited
        context.fail(error)
        return None
    context.update_pbar(_size(awaitable))
    return cast(GroupT, group)


def as_group(group: Iterable[Trajectory | BaseException] | None) -> TrajectoryGroup | None:
    """Returns the result of `wrap_group_awaitable` as a group; None stays None."""
    return group if group is None or isinstance(group, TrajectoryGroup) else TrajectoryGroup(list(group))


def _group(value: Any, function: str) -> TrajectoryGroup | list[Any] | tuple[Any, ...]:
    """A group, or trajectories and exceptions that can be walked through more than once.

    Raises TypeError for anything else.
    """
    if isinstance(value, TrajectoryGroup):
        return value
    wanted = "a TrajectoryGroup or several trajectories"
    if isinstance(value, Trajectory):
        value = no_trajectory(value, function, wanted)
        raise TypeError(f"{value}: put the rollouts of one scenario into art.TrajectoryGroup(...)")
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise no_trajectory(value, function, wanted)
    kept = value if isinstance(value, list | tuple) else list(value)
    if strangers := [item for item in kept if not isinstance(item, Trajectory | BaseException)]:
        raise TypeError(f"{function} returned {kind_of(strangers[0])} among its trajectories")
    return kept


def _failures(group: Any) -> list[Any]:
    if isinstance(group, TrajectoryGroup):
        return list(group.exceptions)
    return [item for item in group if isinstance(item, BaseException)]


async def wrap_trajectories_awaitable(
    awaitable: Awaitable[Trajectory | Iterable[Trajectory]],
) -> Trajectory | list[Trajectory] | BaseException:
    """Awaits one rollout, as a rollout of its own, and counts it in the current context.

    Gives its trajectory, the list of them where it returns several, or its error when that was forgiven.
    """
    context = get_gather_context()
    try:
        kept = _trajectories(await in_rollout(awaitable), function_name(awaitable))
        for trajectory in [kept] if isinstance(kept, Trajectory) else kept:
            record_metrics(context, trajectory)
    except Exception as error:  # noqa: BLE001 - the user's code: any error is a failed rollout, counted and limited
        context.fail(error)
        return error
    context.update_pbar(1)
    return kept


def _trajectories(value: Any, function: str) -> Trajectory | list[Trajectory]:
    """One as it is, several as a list. Raises TypeError when something else is among them."""
    if isinstance(value, Trajectory):
        return value
    kept = list(value) if isinstance(value, Iterable) and not isinstance(value, Mapping | str) else [value]
    if all(isinstance(item, Trajectory) for item in kept):
        return kept
    raise no_trajectory(value, function)


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[Trajectory]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float,
) -> list[Trajectory | BaseException]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[list[Trajectory]]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float,
) -> list[list[Trajectory] | BaseException]: ...


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Any]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> Any:
    """Runs rollouts concurrently; returns each result in the given order.

    A rollout that returns a trajectory gives it; one that returns several gives a list of them, so that
    rollouts of two players give pairs. Forgiven errors (`max_exceptions`) stay in their places.
    """
    _warn_without_effect(pbar_total_completion_tokens)
    items = gathered(trajectories, "gather_trajectories()")
    context = GatherContext(max_exceptions=max_exceptions, total=len(items))
    results: list[Trajectory | list[Trajectory] | BaseException] = [[] for _ in items]

    def on_end(index: int, task: asyncio.Task[Trajectory | list[Trajectory] | BaseException]) -> None:
        if (error := task_failure(task)) is None:
            results[index] = task.result()
            return
        # What the wrapper raised was one too many; what it let through (a cancellation) is counted here.
        if isinstance(error, Exception):
            raise error
        context.fail(error)
        results[index] = error

    with open_progress(pbar_desc, len(items)) as context.pbar, set_gather_context(context):
        await run_side_by_side(items, wrap_trajectories_awaitable, on_end)
    context.failures.log_count(len(items))
    return results


def _size(item: Any) -> int:
    return (
        len(item) + len(item.exceptions)
        if isinstance(item, TrajectoryGroup)
        else getattr(item, "_num_trajectories", 1)
    )


def _warn_without_effect(pbar_total_completion_tokens: bool) -> None:
    if pbar_total_completion_tokens:
        warnings.warn(
            "pbar_total_completion_tokens has no effect and will go", DeprecationWarning, stacklevel=3
        )
