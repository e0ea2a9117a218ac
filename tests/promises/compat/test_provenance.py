"""Where a model on Weights & Biases comes from."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from art.utils import record_provenance


@pytest.mark.slow
def test_an_offline_run_keeps_it_in_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="p", name="agent") as run:
        with caplog.at_level(logging.INFO):
            record_provenance(run, "local-rl")
            record_provenance(run, "sft")
        assert list(run.config["wandb.provenance"]) == ["local-rl", "sft"]
    assert "'sft' of run agent stays in its config: the run is offline" in caplog.text
    assert next(tmp_path.rglob("*.wandb")).stat().st_size > 0


class Online:
    """What `record_provenance` reads of a run that says it has a network."""

    def __init__(self, config: object) -> None:
        self.config, self.offline = config, False
        self.entity, self.project, self.name = "e", "p", "agent"


@pytest.mark.slow
def test_an_artifact_out_of_reach_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))  # no key in any file
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    config = wandb.Config()
    record_provenance(Online(config), "local-rl")
    assert list(config["wandb.provenance"]) == ["local-rl"]
    assert "'local-rl' of e/p/agent:latest stays in the run's config" in caplog.text
