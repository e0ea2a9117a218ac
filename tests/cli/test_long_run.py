"""What the verbs that train for a while write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATH = "pathlib.Path(sys.argv[1])"
WRITE = f"import sys, pathlib, art.cli.run_options as run; run.write_json({PATH}, 'Z\\u00fcrich')"


@pytest.mark.slow
def test_a_locale_without_unicode_stops_no_report(tmp_path: Path) -> None:
    file = tmp_path / "new" / "report.json"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", WRITE, str(file)], env=plain, check=True, timeout=240)
    assert file.read_text(encoding="utf-8") == '"Zürich"\n'
