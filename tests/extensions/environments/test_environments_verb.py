"""`art environments` lists what the registry finds, and says what is missing."""

import json

from typer.testing import CliRunner

from art.cli.main import app
from art.environments.adapters.registry import known_environments
from art.errors import EXTRAS, is_installed
from art_extensions.environments.commands import list_environments


def test_it_lists_what_the_registry_knows() -> None:
    listed = list_environments()
    assert [one.name for one in listed] == known_environments()
    assert all(one.what and not one.what.endswith(":") for one in listed)


def test_an_extra_that_is_missing_is_named() -> None:
    for one in list_environments():
        if one.extra is not None:
            assert one.installed == all(is_installed(module) for module in EXTRAS[one.extra])
    done = CliRunner().invoke(app, ["environments"])
    assert done.exit_code == 0 and "tic-tac-toe" in done.output and "harbor:NAME" in done.output
    missing = [one.extra for one in list_environments() if not one.installed]
    assert all(f"the extra {name}" in done.output for name in missing)


def test_as_json_it_is_the_same() -> None:
    done = CliRunner().invoke(app, ["environments", "--json"])
    assert [one["name"] for one in json.loads(done.output)] == known_environments()
