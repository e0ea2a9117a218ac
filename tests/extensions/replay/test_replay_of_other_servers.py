"""Steps of servers with several ranks, and of those that keep jobs and samples in Postgres."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from private_postgres import PASSWORD, PrivatePostgres
from replayed_run import KEY, make_short_run
from typer.testing import CliRunner

from art.cli.main import app

pytestmark = [pytest.mark.slow, pytest.mark.extension]

STORED = (
    "SELECT (SELECT count(*) FROM art.jobs), (SELECT count(*) FROM art.samples), "
    "(SELECT count(*) FROM art.lanes), (SELECT max(xmin::text::bigint) FROM art.jobs)"
)


def replay(data_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["replay", KEY, "1", "--data-dir", str(data_dir), *options])


def digests(data_dir: Path) -> dict[str, str]:
    files = (path for path in data_dir.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_a_step_of_two_ranks_is_bit_equal_by_two_ranks_that_were_killed(
    tmp_path: Path, sharding: str
) -> None:
    asyncio.run(make_short_run(tmp_path, trainer={"ranks": 2, "sharding": sharding}))
    before = digests(tmp_path)
    done = replay(tmp_path, "--kill-at", "before-commit", "--json")
    found = json.loads(done.output)
    assert (
        found["changed"] == {}
        and found["bit_equal"]
        and found["killed"] == {"at": "before-commit", "left": [".0001.saving"]}
    )
    done = replay(tmp_path, "--ranks", "1", "--json")
    found = json.loads(done.output)
    assert found["changed"] == {"ranks": 1} and 0 < found["update_error"] < 1e-3
    assert digests(tmp_path) == before


def test_a_step_of_a_server_with_postgres_is_bit_equal(
    postgres: PrivatePostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, run = postgres.create_database(), tmp_path / "run"
    monkeypatch.setenv("ART_DATABASE_URL", url)
    asyncio.run(make_short_run(run))
    name = url.rpartition("/")[2]
    before, files = postgres.sql(STORED, database=name), digests(run)
    done = replay(run, "--database", url)
    assert done.exit_code == 0 and "bit-equal" in done.output, done.output
    assert "bit-equal" in replay(run).output, "the folder has no table of jobs"
    assert (postgres.sql(STORED, database=name), digests(run)) == (before, files)
    monkeypatch.delenv("ART_DATABASE_URL")
    done = replay(run)
    assert done.exit_code == 2 and "jobs.sqlite: the request of job" in done.output
    done = replay(run, "--database", f"{url}-of-nobody")
    assert done.exit_code == 2 and "cannot be reached" in done.output and PASSWORD not in done.output
    postgres.sql("DELETE FROM art.samples", database=name)
    done = replay(run, "--database", url)
    assert done.exit_code == 2 and "the samples of the database has sample" in done.output
    postgres.sql("UPDATE art.jobs SET state = 'running'", database=name)
    done = replay(Path(shutil.copytree(run, tmp_path / "copy")), "--database", url)
    assert done.exit_code == 2 and "is going on" in done.output
