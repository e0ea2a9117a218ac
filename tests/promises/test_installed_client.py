"""The base install is small; what takes the space is printed where it is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from installed_client import install_client, size_table, sizes_of

from waiting import DEADLINE_S

pytestmark = pytest.mark.slow


def test_the_client_takes_at_most_80_mb_with_its_compiled_files(tmp_path: Path) -> None:
    """At most 30 packages, and 23 MB of our own; needs the package index."""
    site = install_client(tmp_path / "environment")
    sizes = sizes_of(site)
    assert len(sizes) <= 30, size_table(sizes)
    ours, _ = sizes["agent-reinforcement-trainer"]
    assert sum(size for size, _ in sizes.values()) <= 80e6 and ours <= 23e6, size_table(sizes)
    assert any(site.glob("art/__pycache__/*.pyc")) and any(
        site.glob("art/engine/nano_models/*/*.safetensors")
    )
    files = [path for path in site.glob("art/**/*") if path.is_file()]
    assert ours >= sum(path.stat().st_size for path in files)  # none is left out of the count
    code = "import art; art.TrainableModel; art.LocalBackend; print('ok')"
    python = tmp_path / "environment" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.strip() == "ok"
