"""Tasks of packages that inspect-ai knows and Python cannot import: prints what is said of each, as JSON.

python packages_of_tasks.py FOLDER       an empty folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError

PACKAGES = {
    "lacking_tasks": "import nobody_has.this\n",
    "old_tasks": "from json import a_name_of_later\n",
}


def install(folder: Path) -> None:
    """Writes the packages into a folder, registered as pip does it."""
    for name, text in PACKAGES.items():
        package, about = folder / name, folder / f"{name}-1.0.dist-info"
        package.mkdir()
        about.mkdir()
        (package / "__init__.py").write_text(text)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
        )
        (about / "entry_points.txt").write_text(f"[inspect_ai]\n{name} = {name}\n")
    sys.path.insert(0, str(folder))


def refused(name: str) -> str:
    try:
        find_environment(name)
    except ConfigurationError as error:
        return f"{type(error).__name__}: {error}"
    return "found"


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    packages = ["inspect_evals", *PACKAGES]
    print(json.dumps({package: refused(f"inspect:{package}/gsm8k") for package in packages}))
