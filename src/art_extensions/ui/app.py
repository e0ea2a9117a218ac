"""The application: addresses, and what each page is made of.

/                                               the runs below the folder
/compare?run=...&run=...                        their curves in one chart
/live                                           jobs and rollouts of now; ?run=... of one run
/runs/PLACE/PROJECT/NAME                        a run: curves, steps, checkpoints, settings
/runs/PLACE/PROJECT/NAME/rollouts               all rollouts of a run
/runs/PLACE/PROJECT/NAME/SPLIT/STEP             a step: accounting, times, groups, rollouts
/runs/PLACE/PROJECT/NAME/train/STEP/replay      POST starts a replay of the step, GET says how far it is
/runs/PLACE/PROJECT/NAME/SPLIT/STEP/GROUP       a group: its rollouts side by side
/runs/PLACE/PROJECT/NAME/SPLIT/STEP/GROUP/PLACE a rollout: conversation, tokens, judge, forks
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from art.errors import ARTError
from art.trajectories import History, Trajectory
from art.types import get_messages
from art_extensions.ui import formats
from art_extensions.ui.access import EVERYBODY, VIEWER, GuardedPages, LinkAccess, PrintedAccess, Viewer
from art_extensions.ui.conversation import content_text, visible
from art_extensions.ui.curves import metric_chart
from art_extensions.ui.export import EXPORTED, export_pages
from art_extensions.ui.index import ORDERS, ListQuery
from art_extensions.ui.live import (
    JOB_COLUMNS,
    NODE_COLUMNS,
    NUMBERS,
    PLACEMENT_COLUMNS,
    ROLLOUT_COLUMNS,
    LiveState,
    live_state,
)
from art_extensions.ui.pages import compare_page, costs_page, group_page, rollout_page, run_page, step_page
from art_extensions.ui.replay_jobs import ReplayBusyError, ReplayJobs
from art_extensions.ui.run_files import FILES, RunFiles, StoredRows
from art_extensions.ui.run_list import runs_page
from art_extensions.ui.run_reader import LONGEST_TEXT, RunReader, list_cells

RUN = "/runs/{place}/{project}/{name}"
STEP = RUN + "/{split}/{step:int}"
REPLAY = "replay"
KEY_HEADER = "x-art-key"


THREADS = 2
"""Pages that are made at a time: files are read and markup is written beside the event loop."""
Page = Callable[[Request], Response]


class RunPages:
    """The pages of the runs below one folder."""

    def __init__(
        self,
        root: Path,
        viewer: Viewer = EVERYBODY,
        *,
        threads: CapacityLimiter | None = None,
        stored: StoredRows = FILES,
        replays: ReplayJobs | None = None,
    ) -> None:
        """threads: that all who read share; of these, a viewer has one at a time. stored: reads the jobs and
        samples of servers. replays: starts replays of steps; None: these pages start none.
        """
        self._shared, self._own = threads or CapacityLimiter(THREADS), CapacityLimiter(THREADS)
        if threads is not None:
            self._own.total_tokens = 1
        self.root, self.replays = root, replays
        self.shown_root = str(root) if viewer.tenant is None else "this server"
        self.reader = RunReader(root, viewer, stored)
        self._templates = Environment(
            loader=PackageLoader("art_extensions.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= formats.FILTERS

    def app(self) -> Starlette:
        """Returns the application without its guard."""
        pages: dict[str, Page] = {
            "/": self.runs,
            "/compare": self.compare,
            "/live": self.live,
            "/live.json": self.live_json,
            RUN: self.run,
            RUN + "/rollouts": self.rollouts,
            RUN + "/rollouts.json": self.rollouts_json,
            RUN + "/costs": self.costs,
            RUN + "/version": self.version,
            RUN + "/metric.json": self.metric,
            STEP: self.step,
            STEP + f"/{REPLAY}": self.replay,
            STEP + "/{group:int}": self.group,
            STEP + "/{group:int}/{index:int}": self.rollout,
            STEP + "/{group:int}/{index:int}/text": self.text,
        }
        return Starlette(
            routes=[
                *(Route(path, self._in_thread(page)) for path, page in pages.items()),
                Route(STEP + f"/{REPLAY}", self._in_thread(self.start_replay), methods=["POST"]),
                Mount("/static", StaticFiles(packages=[("art_extensions.ui", "static")])),
            ],
            exception_handlers={HTTPException: self._refused, ARTError: self._unreadable},
        )

    def _in_thread(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """The page, made in a thread: it reads files."""

        async def make(request: Request) -> Response:
            async with self._own:
                return await run_sync(page, request, limiter=self._shared)

        return make

    # Pages. Each is a plain function that runs in a thread.

    def runs(self, request: Request) -> Response:
        """All runs below the folder."""
        return self._page(request, "runs.html", runs_page(list(self.reader.runs().values())))

    def compare(self, request: Request) -> Response:
        """The curves of several runs."""
        found = self.reader.runs()
        named = request.query_params.getlist("run")
        chosen = [found[key] for key in named if key in found]
        content = compare_page(self.reader, chosen, request.query_params)
        missing = [key for key in named if key not in found]
        return self._page(request, "compare.html", {**content, "missing": missing, "runs": found.values()})

    def live(self, request: Request) -> Response:
        """The jobs and rollouts of now."""
        one, now = self._live_state(request)
        columns = {
            "job_columns": JOB_COLUMNS,
            "rollout_columns": ROLLOUT_COLUMNS,
            "node_columns": NODE_COLUMNS,
            "placement_columns": PLACEMENT_COLUMNS,
            "numbers": NUMBERS,
        }
        return self._page(request, "live.html", {"one": one, "now": now, **columns})

    def live_json(self, request: Request) -> Response:
        """The same, for the page's script."""
        return JSONResponse(self._live_state(request)[1].to_json())

    def run(self, request: Request) -> Response:
        """One run."""
        run = self._run(request)
        all_steps = request.query_params.get("steps") == "all"
        content = run_page(self.reader, run, exported=EXPORTED in request.headers, all_steps=all_steps)
        return self._page(request, "run.html", content, run)

    def metric(self, request: Request) -> Response:
        """The chart of one metric, for the picker."""
        run, name = self._run(request), request.query_params.get("name", "")
        chart = metric_chart(run, name)
        if chart is None:
            raise HTTPException(404, f"There is no metric {name} in {run.key}.")
        return JSONResponse(chart)

    def costs(self, request: Request) -> Response:
        """The costs of a run."""
        run = self._run(request)
        return self._page(request, "costs.html", costs_page(run), run)

    def rollouts(self, request: Request) -> Response:
        """All rollouts of a run."""
        run = self._run(request)
        query, version = self._query(request, run), self.reader.index(run).refresh(run)
        return self._page(request, "rollouts.html", self.reader.list_of(run, query, version), run)

    def rollouts_json(self, request: Request) -> Response:
        """One page of a list, for its script."""
        run = self._run(request)
        index = self.reader.index(run)
        version = index.refresh(run)
        query = self._query(request, run)
        rows = index.page(query, formats.whole_number(request.query_params.get("page")) or 0, version)
        return JSONResponse(
            {"version": version, "count": index.count(query), "rows": [list_cells(row) for row in rows]}
        )

    def version(self, request: Request) -> Response:
        """A word that changes when the run does."""
        run = self._run(request)
        return JSONResponse({"version": f"{run.last_change()}", "step": max(run.history.steps, default=0)})

    def step(self, request: Request) -> Response:
        """One step of a split."""
        run, split, step = self._step(request)
        exported = EXPORTED in request.headers
        page = step_page(self.reader, run, split, step, exported=exported)
        page |= {"exported": exported, "replay_now": None}
        if self.replays is not None and page["replay"] is not None:
            page |= {"replay_now": self.replays.find(run, step), "replay_key": self.replays.key}
        return self._page(request, "step.html", page, run)

    def replay(self, request: Request) -> Response:
        """The newest replay of a step."""
        jobs, run, step = self._replays(request)
        return JSONResponse(dict(jobs.find(run, step)))

    def start_replay(self, request: Request) -> Response:
        """Starts a replay of a step. The page has the key that the request needs."""
        jobs, run, step = self._replays(request)
        if not secrets.compare_digest(request.headers.get(KEY_HEADER, "").encode(), jobs.key.encode()):
            raise HTTPException(403, f"The header {KEY_HEADER} is not the key of the page: load it again.")
        try:
            started = jobs.start(run, step)
        except ReplayBusyError as error:
            return JSONResponse({**jobs.find(run, step), "words": str(error)}, 409)
        return JSONResponse(started.to_json(), 202)

    def group(self, request: Request) -> Response:
        """One group: its rollouts side by side."""
        run, split, step = self._step(request)
        content = group_page(self.reader, run, split, step, request.path_params["group"])
        return self._page(request, "group.html", content, run)

    def rollout(self, request: Request) -> Response:
        """One rollout."""
        run, split, step = self._step(request)
        where = request.path_params["group"], request.path_params["index"]
        return self._page(request, "rollout.html", rollout_page(self.reader, run, split, step, *where), run)

    def text(self, request: Request) -> Response:
        """One message in full, as plain text."""
        run, split, step = self._step(request)
        one = self.reader.trajectory(
            run, split, step, request.path_params["group"], request.path_params["index"]
        )
        history = formats.whole_number(request.query_params.get("history")) or 0
        place = formats.whole_number(request.query_params.get("turn")) or 0
        histories: list[Trajectory | History] = [one, *one.additional_histories] if one is not None else []
        messages = get_messages(histories[history].messages_and_choices) if history < len(histories) else []
        if place >= len(messages):
            raise HTTPException(404, f"This rollout has no turn {place}.")
        return PlainTextResponse(content_text(dict(messages[place])).encode("utf-8", "backslashreplace"))

    # What routes share.

    def _live_state(self, request: Request) -> tuple[RunFiles | None, LiveState]:
        found = self.reader.runs()
        key = request.query_params.get("run")
        if key is not None and key not in found:
            raise HTTPException(404, f"There is no run {key} below {self.shown_root}.")
        one = None if key is None else found[key]
        runs = list(found.values()) if one is None else [one]
        return one, live_state(runs, one=one is not None, now=time.time())

    def _run(self, request: Request) -> RunFiles:
        key = "/".join(request.path_params[part] for part in ("place", "project", "name"))
        run = self.reader.runs().get(key)
        if run is None:
            raise HTTPException(404, f"There is no run {key} below {self.shown_root}.")
        return run

    def _step(self, request: Request) -> tuple[RunFiles, str, int]:
        run, split, step = self._run(request), request.path_params["split"], request.path_params["step"]
        known = run.splits.get(split, [])
        if step not in known and not (split == "train" and step in run.history.steps):
            raise HTTPException(404, f"Step {step} of {split} is not recorded in {run.key}.")
        return run, split, step

    def _replays(self, request: Request) -> tuple[ReplayJobs, RunFiles, int]:
        run, split, step = self._step(request)
        if self.replays is None or split != "train":
            raise HTTPException(404, "These pages do not replay this step: use art replay in a terminal.")
        return self.replays, run, step

    def _query(self, request: Request, run: RunFiles) -> ListQuery:
        asked = request.query_params
        order = asked.get("order", "step")
        return ListQuery(
            run=run.key,
            split=asked.get("split") or None,
            step=formats.whole_number(asked.get("step")),
            group=formats.whole_number(asked.get("group")),
            fate=asked.get("fate") or None,
            text=(asked.get("text") or "")[:LONGEST_TEXT] or None,
            order=order if order in ORDERS else "step",
            descending=asked.get("way") == "down",
        )

    def _page(
        self, request: Request, template: str, content: Mapping[str, Any], run: RunFiles | None = None
    ) -> Response:
        base = request.scope.get("root_path", "")
        text = self._templates.get_template(template).render(
            base=base, run=run, root=self.shown_root, **content
        )
        return HTMLResponse(self._without_root(text))

    def _refused(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = error.detail if isinstance(error, HTTPException) else str(error)
        return self._words(request, status, words)

    def _unreadable(self, request: Request, error: Exception) -> Response:
        return self._words(request, 200, str(error))

    def _words(self, request: Request, status: int, words: str) -> Response:
        base = request.scope.get("root_path", "")
        page = self._templates.get_template("words.html").render(
            base=base, run=None, root=self.shown_root, status=status, words=visible(words)
        )
        return HTMLResponse(self._without_root(page), status)

    def _without_root(self, page: str) -> str:
        """The page as a tenant may see it: the folders of a server are its operator's."""
        viewer = self.reader.viewer
        if viewer.tenant is None:
            return page
        for folder in (f"{self.root}/{viewer.prefix}", str(self.root)):
            page = page.replace(str(escape(folder)), "")
        return page


def export_runs(root: Path, folder: Path) -> int:
    """Writes the pages of the runs below `root` as files. Returns how many pages there are.

    Raises: ConfigurationError when `folder` has files, OSError.
    """
    pages = RunPages(root)
    try:
        return export_pages(pages.app(), folder)
    finally:
        pages.reader.close()


def guarded_pages(root: Path, *, port: int, on_use: Callable[[str], None]) -> GuardedPages[PrintedAccess]:
    """Returns the pages as they are served on a port of loopback, to browsers that used a printed address."""
    hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
    access = PrintedAccess(hosts=hosts, cookie=f"art-ui-{port}", on_use=on_use)
    replays = ReplayJobs()
    pages = RunPages(root, replays=replays)

    def close() -> None:
        replays.close()
        pages.reader.close()

    return GuardedPages(pages.app(), access, on_close=close, actions=frozenset({REPLAY}))


class MountedPages:
    """The pages of a server's folder: the operator sees all runs, a tenant its own."""

    def __init__(self, root: Path, path: str, stored: StoredRows) -> None:
        self._root, self._path, self._stored = root, path, stored
        self._threads = CapacityLimiter(THREADS)
        self._pages: dict[Viewer, tuple[RunPages, Starlette]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer: Viewer = scope[VIEWER]
        if viewer not in self._pages:
            pages = RunPages(self._root, viewer, threads=self._threads, stored=self._stored)
            self._pages[viewer] = pages, pages.app()
        await self._pages[viewer][1]({**scope, "root_path": self._path}, receive, send)

    def close(self) -> None:
        """Closes the indexes."""
        for pages, _ in self._pages.values():
            pages.reader.close()


def mounted_pages(root: Path, access: LinkAccess, stored: StoredRows = FILES) -> GuardedPages[LinkAccess]:
    """Returns the pages as a server answers them, to browsers that used a link of `access`."""
    pages = MountedPages(root, access.path, stored)
    return GuardedPages(pages, access, on_close=pages.close)
