"""What `art doctor` prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from art.cli import app
from art_extensions.doctor.examination import Finding, show_finding


def test_a_remedy_is_printed_as_it_is_to_be_typed() -> None:
    printed = io.StringIO()
    remedy = f"pip install 'agent-reinforcement-trainer[local] @ file:///{'a-long-folder/' * 9}art.whl'"
    show_finding(
        Console(file=printed, width=80), Finding(level="bad", subject="torch", what="missing", remedy=remedy)
    )
    assert remedy in printed.getvalue()


@pytest.mark.slow
def test_the_plan_of_a_model_is_printed_before_anything_is_rented() -> None:
    done = CliRunner().invoke(app, ["doctor", "--plan", "0.6B", "--bits", "4"])
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert "Qwen/Qwen3-0.6B: 0.60 B parameters, 4 bits, LoRA of rank 16, context 8,192" in told
    assert "keys and values of 8 conversations" in told and "one CPU, in float32" in told
    assert "fits a GPU of 24 GB: yes" in told and "not measured on a GPU" in told


@pytest.mark.slow
def test_a_plan_that_cannot_be_is_refused() -> None:
    done = CliRunner().invoke(app, ["doctor", "--plan", "8B", "--bits", "8", "--engine", "vllm"])
    assert done.exit_code == 2 and "no bitsandbytes quantization" in " ".join(done.output.split())
