"""The jobs and the rollouts of now: what waits, what is trained, what was sampled last; and on which nodes.

All of it is read from files of the server, which writes there before it answers anybody. So the same is
seen under a server and beside it, and after its death what it left unfinished:

    server/jobs.sqlite      jobs with their newest event
    server/ledger.sqlite    rollouts that are open, completions of the last minutes
    server/cluster.json     the nodes of a server's cluster, its workers on them and their leases
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.process.foreign_files import parse_json, read_foreign
from art.process.running_server import CLUSTER_FILE
from art_extensions.ui.access import Viewer
from art_extensions.ui.conversation import visible
from art_extensions.ui.formats import address, duration, number
from art_extensions.ui.run_files import RunFiles, life_sign

RECENT_SECONDS = 120.0
"""Seconds for which a rollout is listed after its last completion."""
MOST_LISTED = 100
_NEWEST_SAMPLES = 1000
"""The newest completions that are searched for rollouts."""
_LONGEST_NAME = 80
JOB_COLUMNS = ("Model", "Job", "Phase", "Progress", "Asked for")
NODE_COLUMNS = ("Node", "State", "CPUs", "GPUs", "Workers")
PLACEMENT_COLUMNS = ("Worker", "Node", "Process", "Lease renewed", "Lease")
NUMBERS = frozenset(
    {"Progress", "Asked for", "Step", "Completions", "Tokens", "Last completion"}
    | {"CPUs", "GPUs", "Workers", "Process", "Lease renewed", "Lease"}
)
"""Columns that are aligned as numbers."""
ROLLOUT_COLUMNS = ("Rollout", "Model", "Step", "State", "Completions", "Tokens", "Last completion")


@dataclass(frozen=True)
class LiveRow:
    """One line of a table."""

    cells: list[str]
    href: str = ""
    """The page of the model, behind the address of the pages."""


@dataclass(frozen=True)
class LiveState:
    """The content of the page until the next look."""

    state: str
    """alive, dead or finished."""
    words: str
    jobs: list[LiveRow]
    rollouts: list[LiveRow]
    nodes: list[LiveRow]
    """Rows of the cluster's nodes; empty for a tenant, or without a cluster."""
    placements: list[LiveRow]

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the page's script."""
        return asdict(self)


def live_state(runs: Sequence[RunFiles], *, one: bool, now: float) -> LiveState:
    """Returns the jobs and rollouts of these runs. one: of the only run; others of its folder are left out.

    Without `one`, completions of base models are listed too.
    """
    folders = {run.data_dir: run for run in runs}
    signs = [life_sign(run) for run in folders.values()]  # one run tells it of its folder
    jobs: list[LiveRow] = []
    rollouts: list[LiveRow] = []
    nodes: list[LiveRow] = []
    placements: list[LiveRow] = []
    for data_dir, sign in zip(folders, signs, strict=True):
        here = [run for run in runs if run.data_dir == data_dir]
        jobs += _jobs(here, now)
        rollouts += _rollouts(here, one=one, now=now)
        if sign.state == "alive" and folders[data_dir].viewer.tenant is None:
            found = _cluster(data_dir / "server" / CLUSTER_FILE, now)
            nodes += found[0]
            placements += found[1]
    if any(sign.state == "alive" for sign in signs):
        state = "alive"
        words = f"{_counted(len(jobs), 'job')}, {_counted(len(rollouts), 'rollout')} lately."
        if max(len(jobs), len(rollouts)) > MOST_LISTED:
            words += f" The newest {MOST_LISTED} are listed."
    else:
        state = signs[0].state if one else "dead" if jobs else "finished"
        reason = f" ({signs[0].words})" if one else ""
        words = f"Server not running{reason}. Last recorded state:"
    return LiveState(state, words, *(rows[:MOST_LISTED] for rows in (jobs, rollouts, nodes, placements)))


def _cluster(path: Path, now: float) -> tuple[list[LiveRow], list[LiveRow]]:
    """The nodes and the workers on them, as the server wrote them last; none where it wrote no such file."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = parse_json(read_foreign(path))
        age = max(0.0, now - float(found["written_at"]))
        on_node = Counter(str(worker["node"]) for worker in found["workers"])
        nodes = [
            LiveRow(
                [
                    visible(str(node["address"])),
                    visible(str(node["state"])),
                    *(f"{float(node['resources'].get(kind, 0)):g}" for kind in ("CPU", "GPU")),
                    number(on_node[str(node["address"])]),
                ]
            )
            for node in found["nodes"]
        ]
        placements = [
            LiveRow(
                [
                    visible(str(worker["name"])),
                    visible(str(worker["node"])),
                    visible(str(worker["pid"])),
                    f"{duration(float(worker['lease_age']) + age)} ago",
                    duration(float(worker["lease"])),
                ]
            )
            for worker in found["workers"]
        ]
        return nodes, placements
    return [], []


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _jobs(runs: Sequence[RunFiles], now: float) -> list[LiveRow]:
    """The unfinished jobs of models of one data folder, the running ones first."""
    known = {(f"{run.viewer.prefix}{run.project}", run.name): run for run in runs}
    query = (
        "SELECT job_id, project, name, state, phase, created_at, (SELECT body FROM events "
        "WHERE events.job_id = jobs.job_id ORDER BY events.number DESC LIMIT 1) FROM jobs "
        "WHERE state IN ('queued', 'running') ORDER BY state = 'queued', number"
    )
    rows = []
    for job, project, name, state, phase, created, body in runs[0].read_stored("jobs", query):
        if (run := known.get((project, name))) is None:
            continue
        done, total = _progress(body) if state == "running" else (0, 0)
        cells = [
            visible(f"{run.project}/{run.name}"),
            visible(run.viewer.in_own_names(job))[:12],
            visible(phase if state == "running" else "waits"),
            f"{number(done)} of {number(total)}" if total else "",
            f"{duration(max(0.0, now - created))} ago",
        ]
        rows.append(LiveRow(cells, address(run)))
    return rows


def _progress(body: str | None) -> tuple[int, int]:
    with suppress(ValueError, TypeError, AttributeError):
        event = parse_json(body or "{}")
        return int(event.get("done") or 0), int(event.get("total") or 0)
    return 0, 0


def _rollouts(runs: Sequence[RunFiles], *, one: bool, now: float) -> list[LiveRow]:
    """Rollouts that are open, or had a completion a moment ago; the newest first."""
    viewer = runs[0].viewer
    of_tenant, tenant = ("", []) if viewer.tenant is None else (" AND tenant = ?", [viewer.tenant])
    models = {(f"{viewer.prefix}{run.project}", run.name) for run in runs} if one else None
    opened = runs[0].read_stored(
        "ledger",
        "SELECT tenant, rollout_id, scope, opened_at FROM rollouts WHERE closed_at IS NULL AND "
        f"expires_at > ?{of_tenant} ORDER BY opened_at DESC",
        [now, *tenant],
    )
    sampled = runs[0].read_stored(
        "ledger",
        "SELECT coalesce(tenant, ''), rollout_id, project, model, max(step), count(*), "
        "sum(length(completion)) / 4, max(created_at) FROM samples "
        f"WHERE rowid > (SELECT max(rowid) FROM samples) - ? AND created_at > ?{of_tenant} "
        "GROUP BY tenant, rollout_id, project, model ORDER BY max(created_at) DESC",
        [_NEWEST_SAMPLES, now - RECENT_SECONDS, *tenant],
    )
    waiting = {(owner, rollout): (scope, at) for owner, rollout, scope, at in opened}
    rows = []
    for owner, rollout, project, model, step, count, tokens, last in sampled:
        is_open = waiting.pop((owner, rollout), None) is not None
        if models is None or (project, model) in models:
            ago = f"{duration(max(0.0, now - last))} ago"
            shown = [number(step), "open" if is_open else "", number(count), number(tokens), ago]
            rows.append(LiveRow([_rollout_name(rollout), _model(viewer, project, model), *shown]))
    for (_, rollout), (scope, at) in waiting.items():
        project, model = _scope(scope)
        if models is None or (project, model) in models:
            shown = ["–", f"open for {duration(max(0.0, now - at))}", "0", "0", "–"]
            rows.append(LiveRow([_rollout_name(rollout), _model(viewer, project, model), *shown]))
    return rows


def _rollout_name(rollout: str | None) -> str:
    return visible(rollout)[:_LONGEST_NAME] if rollout else "without a name"


def _model(viewer: Viewer, project: str | None, model: str) -> str:
    return visible(f"{viewer.in_own_names(project)}/{model}" if project else model)


def _scope(scope: bytes) -> tuple[str | None, str]:
    with suppress(ValueError, TypeError, KeyError):
        found = parse_json(scope)
        return str(found["project"]), str(found["name"])
    return None, "?"
