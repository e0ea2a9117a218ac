"""What the verbs that train for a while write."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from art.cli.run_options import show_report

PATH = "pathlib.Path(sys.argv[1])"
WRITE = f"import sys, pathlib, art.cli.run_options as run; run.write_json({PATH}, 'Z\\u00fcrich')"


@pytest.mark.slow
def test_a_locale_without_unicode_stops_no_report(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.json"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", WRITE, str(file)], env=plain, check=True, timeout=240)
    assert file.read_text(encoding="utf-8") == '"Zürich"\n'


class WrittenReport:
    folder = Path("run")

    def to_markdown(self) -> str:
        return f"- {' '.join(map(str, range(100)))}."


def test_a_report_wider_than_the_terminal_is_wrapped() -> None:
    console = Console(file=StringIO(), width=40, soft_wrap=True)
    show_report(console, WrittenReport(), None)  # type: ignore[arg-type]
    assert console.file.getvalue().split()[1:-1] == [*map(str, range(99)), "99."]  # type: ignore[attr-defined]
