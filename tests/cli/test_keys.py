"""`art keys`, `art run` and `art help`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art.cli import app
from art.cli.main import VERB_ORDER
from art.server.tenants import TenantKeys, digest_of_key


def art(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    folder = ("--data-dir", str(tmp_path))
    code, key, said = art("keys", "create", "alice", *folder)
    assert code == 0 and "alice" in said and key.count("\n") == 1
    assert TenantKeys(tmp_path / "server" / "tenants.json").owner(digest_of_key(key.strip())) == "alice"
    code, listed, _ = art("keys", "list", *folder)
    assert code == 0 and listed.startswith("alice\t") and key.strip() not in listed
    assert art("keys", "create", "alice", *folder)[0] == 2
    assert art("keys", "revoke", "alice", *folder)[0] == 0
    code, _, said = art("keys", "revoke", "alice", *folder)
    assert code == 2 and "no tenant 'alice'" in said
    assert "No tenants" in art("keys", "list", *folder)[2]


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    code, key, said = art("keys", "create", "../x", "--data-dir", str(tmp_path))
    assert code == 2 and key == "" and "is not a name" in said


def test_the_verbs_are_listed_in_the_order_of_their_use() -> None:
    code, text, _ = art("--help")
    listed = re.findall(r"^│ ([a-z][a-z-]*)  ", text, re.M)
    assert (
        code == 0
        and listed == [verb for verb in VERB_ORDER if verb in listed]
        and set(VERB_ORDER) == set(listed)
    )
    assert re.findall(r"^│ ([a-z][a-z-]*)  ", art("help")[1], re.M) == listed


def test_help_knows_each_verb_and_lists_them_for_an_unknown_one() -> None:
    assert "--port" in art("help", "serve")[1]
    assert "revoke" in art("help", "keys")[1]
    code, _, said = art("help", "fly")
    assert code == 2 and "no verb 'fly'" in said and "quickstart" in said


@pytest.mark.slow
def test_run_is_serve_and_refuses_other_machines_without_a_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("ART_API_KEY", raising=False)
    code, _, said = art("run", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path))
    assert code == 1 and "art run is art serve" in said and "choose a key" in said
    assert "7999" in art("run", "--help")[1]
