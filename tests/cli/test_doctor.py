"""What `art doctor` prints."""

from __future__ import annotations

import io

from rich.console import Console

from art.cli.doctor import Finding, show_finding


def test_a_remedy_is_printed_as_it_is_to_be_typed() -> None:
    printed = io.StringIO()
    remedy = f"pip install 'agent-reinforcement-trainer[local] @ file:///{'a-long-folder/' * 9}art.whl'"
    show_finding(
        Console(file=printed, width=80), Finding(level="bad", subject="torch", what="missing", remedy=remedy)
    )
    assert remedy in printed.getvalue()
