"""The pages of the runs say the same, wherever the server keeps its jobs and samples."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path

import pytest
from homes import Home
from made_run import MadeRun, sample_records, trajectory
from private_postgres import PrivatePostgres
from served_pages import words_of
from starlette.testclient import TestClient

from art.process.files import take_lock
from art.wire.jobs import BalanceSheet, TrainJobRequest, TrainResultInfo
from art.wire.training import OptimizerSpec
from art_extensions.postgres.shared import StoredInPostgres
from art_extensions.ui.access import EVERYBODY, Viewer
from art_extensions.ui.app import RunPages
from art_extensions.ui.run_files import FILES, StoredRows

OPEN = "INSERT INTO rollouts (tenant, rollout_id, scope, opened_at, expires_at) VALUES (?, ?, ?, ?, ?)"


async def serve_a_while(home: Home) -> None:
    """What a server has of a run: two samples, an open rollout, a job that is done and one that runs."""
    run = MadeRun(home.folder)
    run.step(1, [[trajectory("s1a", 0.0, "tea"), trajectory("s1b", 1.0, "the")]])
    run.checkpoint(1)
    now = time.time()
    records = sample_records({"s1a-0": ("WHO ", "the tea"), "s1a-1": ("A", "caféB")}, since=now - 30)
    scope = json.dumps({"project": "games", "name": "player"}).encode()
    ledger, jobs = await home.open_ledger(), await home.open_jobs()
    await ledger.writer.append(records, [(OPEN, ("", "scoped", scope, now - 7, now + 900))])
    for job in ("done-job", "running-job"):
        request = TrainJobRequest(job_id=job, groups=[], optimizer=OptimizerSpec(learning_rate=0.25))
        await jobs.submit("games", "player", request)
        await jobs.progress(job, "training", done=512, total=2000)
        if job == "done-job":
            await jobs.finish(job, TrainResultInfo(step=1, metrics={}, sheet=BalanceSheet()))
    await ledger.close()
    await jobs.close()


async def pages_of(home: Home, stored: StoredRows, *paths: str, viewer: Viewer = EVERYBODY) -> list[str]:
    """The words of pages, which are made in threads beside this event loop."""
    pages = RunPages(home.folder, viewer, stored=stored)
    client = TestClient(pages.app())
    found = [words_of((await asyncio.to_thread(client.get, path)).text) for path in paths]
    pages.reader.close()
    return found


async def stored_of(home: Home) -> StoredRows:
    return FILES if home.url is None else StoredInPostgres(await home.database(), home.folder)


async def test_jobs_rollouts_settings_and_tokens_are_shown(home: Home) -> None:
    await serve_a_while(home)
    (home.folder / "server").mkdir(exist_ok=True)
    held = take_lock(home.folder / "server" / "lock")
    assert held is not None
    stored = await stored_of(home)
    live, run, rollout = await pages_of(
        home, stored, "/live", "/runs/-/games/player", "/runs/-/games/player/train/1/0/0"
    )
    os.close(held)
    assert "Now alive 1 job, 2 rollouts lately." in live
    assert "games/player running-job training 512 of 2,000" in live
    assert re.search(r"s1a games/player 0 2 15", live), live
    assert re.search(r"scoped games/player – open for [\w. ]+ 0 0", live)
    assert "alive training: training" in run and "0.25" in run, run
    assert "c a f é B" in rollout and "WHO" in rollout, rollout
    (own,) = await pages_of(home, stored, "/live", viewer=Viewer("alice", "alice~"))
    assert "s1a" not in own and "scoped" not in own


@pytest.mark.slow
async def test_a_database_that_is_away_leaves_the_pages_their_files(
    postgres: PrivatePostgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.create_database()
    home = Home(tmp_path, url, postgres)
    await serve_a_while(home)
    database = await home.database()
    database.patience = 0.1
    stored = StoredInPostgres(database, home.folder)
    postgres.sql(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)", database="postgres")
    (run,) = await pages_of(home, stored, "/runs/-/games/player")
    assert "games/player" in run and "a page is shown without what the database has" in caplog.text
    await home.close()
