from __future__ import annotations

import pytest
from tests.extensions.sinks.offline_run import offline_runs

import art
from art.utils.benchmarking import log_constant_metrics_wandb


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_wandb")
def test_a_baseline_is_a_run_of_its_own(tmp_path, monkeypatch):
    import wandb

    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    model = art.Model(name="gpt", project="p", report_metrics=[])
    log_constant_metrics_wandb(model, 3, {"val": {"reward": 0.5, "costs/x": 1}}, logged_run_name="baseline")
    wandb.teardown()
    [run] = offline_runs(tmp_path)
    assert (run.project, run.id, run.name) == ("p", "baseline", "baseline")
    assert run.axes["val/reward"] == "training_step"
    told = [{name: value for name, value in row.items() if name[0] != "_"} for row in run.rows]
    assert told == [{"training_step": step, "val/reward": 0.5, "costs/x": 1.0} for step in range(3)]
