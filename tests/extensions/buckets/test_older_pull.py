"""The older names by which programs pull a model from a bucket."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_folders import write_step

import art
from art.errors import CheckpointMissingError, ConfigurationError
from art_extensions.buckets.bucket_pull import Wanted, commit_here, pull_model
from art_extensions.buckets.bucket_push import local_steps
from art_extensions.buckets.transfers import store_of

pytestmark = pytest.mark.filterwarnings("ignore:_experimental_pull_from_s3 is an older name")


@pytest.fixture
def trained() -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(name="agent", project="games", base_model="art/nano")


@pytest.fixture
def empty(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket"


@pytest.mark.parametrize("options", [{"only_step": "latest"}, {"latest_only": True}, {}])
async def test_a_first_run_pulls_nothing_from_an_empty_bucket(
    trained: art.TrainableModel[Any, Any],
    empty: str,
    options: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = art.LocalBackend(path=tmp_path / "here")
    with caplog.at_level(logging.INFO, "art"):
        await backend._experimental_pull_from_s3(trained, s3_bucket=empty, **options)
    assert [line for line in caplog.messages if "nothing was pulled" in line] == caplog.messages
    assert len(caplog.messages) == 1 and "No checkpoints found" in caplog.text
    await backend.close()


@pytest.mark.parametrize("option", ["only_step", "step"])
async def test_a_step_of_an_empty_bucket_is_missing(
    trained: art.TrainableModel[Any, Any], empty: str, option: str, tmp_path: Path
) -> None:
    backend = art.LocalBackend(path=tmp_path / "here")
    with pytest.raises(CheckpointMissingError, match="No checkpoints found"):
        await backend._experimental_pull_from_s3(trained, s3_bucket=empty, **{option: 3})
    with pytest.raises(ConfigurationError, match=f"{option}='newest': it is a number, 'latest' or None"):
        await backend._experimental_pull_from_s3(trained, s3_bucket=empty, **{option: "newest"})
    await backend.close()


async def test_the_latest_step_alone_is_pulled(
    trained: art.TrainableModel[Any, Any], empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, here = (tmp_path / name / "games" / "models" / "agent" for name in ("bucket", "here"))
    for step in (1, 2):
        write_step(pushed, step)
    (pushed / "history.jsonl").write_text('{"step": 2}\n')
    backend = art.LocalBackend(path=tmp_path / "here")

    async def pull_without_server(project: str, name: str, wanted: Wanted, *place: Any) -> None:
        pull_model(store_of(project, name, *place[:2]), here, wanted, commit=commit_here(here))

    monkeypatch.setattr(backend, "_pull", pull_without_server)
    await backend._experimental_pull_from_s3(trained, s3_bucket=empty, only_step="latest")
    assert list(local_steps(here)) == [2] and not (here / "history.jsonl").exists()
    shutil.rmtree(here)
    await backend._experimental_pull_from_s3(trained, s3_bucket=empty, only_step=1)
    assert list(local_steps(here)) == [1]
    await backend.close()
