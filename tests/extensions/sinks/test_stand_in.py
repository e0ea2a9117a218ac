"""Modules that a program's own tests put in place of a library: they have no `__spec__`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import art
from art.errors import MissingExtraError, is_installed, require_extra
from art.process.environment import WANDB_API_KEY
from art_extensions.sinks.wandb import open_runs


def module_with(**attributes: Any) -> ModuleType:
    module = ModuleType("wandb")
    vars(module).update(attributes)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[MagicMock]:
    monkeypatch.setenv(WANDB_API_KEY, "k" * 40)
    open_runs.cache_clear()
    yield MagicMock()
    open_runs.cache_clear()


def model_of(folder: Any, **options: Any) -> art.Model:
    return art.Model(name="agent", project="games", base_path=str(folder), **options)


@pytest.mark.parametrize("kind", [module_with, SimpleNamespace, MagicMock])
@pytest.mark.parametrize("options", [{}, {"report_metrics": ["wandb"]}])
async def test_a_stand_in_of_wandb_gets_the_rows(tmp_path, run, kind, options, monkeypatch, caplog):
    stand_in = kind(init=MagicMock(return_value=run), Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    with pytest.raises(ValueError, match="__spec__"):
        importlib.util.find_spec("wandb")
    await model_of(tmp_path, **options).log([art.Trajectory(reward=1)], step=0)
    (logged,) = (call.args[0] for call in run.log.call_args_list)
    assert logged["val/reward"] == 1 and stand_in.init.call_args.kwargs["project"] == "games"
    assert "Weights & Biases failed" not in caplog.text


async def test_an_empty_stand_in_ends_no_run(tmp_path, run, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    model = model_of(tmp_path)
    await model.log(metrics={"acc": 1}, step=0)
    (row,) = (model._folder() / "history.jsonl").read_text().splitlines()
    assert json.loads(row)["val/acc"] == 1 and "Weights & Biases failed" in caplog.text


def test_what_is_installed(monkeypatch):
    assert is_installed("json") and not is_installed("no_such_library")
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert is_installed("datasets")
    with pytest.raises(MissingExtraError, match="needs 'mcp'"):
        require_extra("mcp", "an MCP server")
