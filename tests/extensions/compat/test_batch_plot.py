"""The picture of a step's batch, which `plot_tensors=True` asks for."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.errors import RequestError
from art_extensions.compat import batch_plot
from art_extensions.compat.batch_plot import check_plots, plot_batch

pytestmark = pytest.mark.extension


@pytest.mark.slow
def test_the_picture_of_a_batch(tmp_path: Path) -> None:
    rows = [
        SampleRow(
            sample_id=f"s{n}",
            prompt_ids=array("q", [1, 2]),
            completion_ids=array("q", [3, 4 + n]),
            completion_logprobs=array("d", [-0.5, -0.25]),
        )
        for n in (0, 1)
    ]
    groups = [GroupRow(rollouts=[RolloutRow(rollout=f"r{n}", reward=n, samples=[rows[n]]) for n in (0, 1)])]
    path = plot_batch(build_batch(groups), tmp_path, 3)
    assert path == tmp_path / "packed_tensors_plot_0003.png" and path.read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_a_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plots()
    monkeypatch.setattr(batch_plot, "is_installed", lambda name: name != "matplotlib")
    with pytest.raises(RequestError, match="the extra 'plotting'") as refused:
        check_plots()
    assert (refused.value.status, refused.value.code) == (400, "matplotlib_missing")
