"""What `art environments KIND` lists where the libraries are installed, and whether a name can be had.

python installed_names.py KIND[=EXAMPLE[=OPTIONS]] ...    OPTIONS: JSON of `find_environment`
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

HEAVY = ("reasoning_gym", "textarena", "gymnasium", "skyrl_gym", "inspect_ai", "inspect_evals")
HEAVY += ("verifiers", "openenv", "bfcl_eval", "datasets", "torch")


def main() -> None:
    from art.environments.adapters.registry import find_environment
    from art_extensions.environments.commands import list_environments, list_names

    listed = {one.name.partition(":")[0]: one for one in list_environments()}
    told: dict[str, object] = {
        "imported": [one for one in HEAVY if one in sys.modules],
        "versions": {kind: one.version for kind, one in listed.items() if one.version},
    }
    if find_spec("gymnasium"):
        import_module("registered_world")  # tests/contracts: Guess-v0
    for word in sys.argv[1:]:
        kind, *more = word.split("=", 2)
        told[kind] = {one.name: one.needs for one in list_names(kind, {})}
        if more:
            options = json.loads(more[1]) if len(more) > 1 else {}
            environment = find_environment(f"{kind}:{more[0]}", **options)
            told[f"{kind} scenarios"] = len(environment.scenarios("train"))
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()
