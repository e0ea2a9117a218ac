"""What the gateways are told: engines' keys that readers of the database cannot use, and names that move."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from homes import Home
from private_postgres import PASSWORD, PrivatePostgres
from typer.testing import CliRunner

from art.cli import app
from art.engine.protocol import Deadlines
from art.errors import ConfigurationError, MissingExtraError
from art.server.catalog import Catalog
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.data_folder import DataLayout
from art.server.settings import parse_settings
from art.server.shared_store import LostControlError, open_gateway
from art_extensions.postgres.followed import ServedFollower
from art_extensions.postgres.gateways import ControllerLock
from art_extensions.postgres.published import Publisher, open_key, prepare_published, seal_key, sealing_secret
from art_extensions.postgres.shared import open_gateway_database, open_shared

ENGINE, URL = "key-of-an-engine", "http://127.0.0.1:1"


def test_an_engine_s_key_is_opened_by_the_same_server_key_for_the_same_engine_alone() -> None:
    secret = sealing_secret("the server's key")
    sealed = seal_key(secret, URL, ENGINE)
    assert ENGINE not in sealed and open_key(secret, URL, sealed) == ENGINE
    assert seal_key(secret, URL, ENGINE) != sealed, "no two are alike"
    for other, url in ((sealing_secret("another key"), URL), (secret, "http://127.0.0.1:2")):
        with pytest.raises(ConfigurationError, match="same ART_API_KEY") as refused:
            open_key(other, url, sealed)
        assert ENGINE not in str(refused.value)


def test_a_password_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for url in ("postgresql://art:open-barley@h/art", "postgresql://art@h/art?password=open-barley"):
        told = CliRunner().invoke(app, ["serve", "--data-dir", str(tmp_path), "--database", url])
        assert told.exit_code == 2 and "ART_DATABASE_URL" in told.output
        assert "open-barley" not in told.output


def test_settings_that_are_refused_or_shown_do_not_show_the_database() -> None:
    url = "postgresql://art:open-barley@h/art"
    assert "open-barley" not in repr(parse_settings(f'{{"database": "{url}"}}'))
    with pytest.raises(ConfigurationError) as refused:
        parse_settings(f'{{"database": "{url}", "role": "other"}}')
    assert "open-barley" not in str(refused.value)


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.errors.find_spec", lambda module: None if module == "asyncpg" else True)
    with pytest.raises(MissingExtraError, match=r"needs 'asyncpg'.*\[postgres\]"):
        await open_shared("postgresql://art@127.0.0.1:1/art", None)
    with pytest.raises(MissingExtraError, match=r"needs 'asyncpg'.*\[postgres\]"):
        async with open_gateway_database("postgresql://art@127.0.0.1:1/art"):
            pass
    with pytest.raises(ConfigurationError, match="role 'gateway' needs the database"):
        open_gateway(parse_settings('{"role": "gateway"}'), "k" * 8)


@pytest.mark.slow
async def test_who_is_the_controller_no_more_publishes_nothing(
    postgres: PrivatePostgres, tmp_path: Path
) -> None:
    home = Home(tmp_path, postgres.create_database(), postgres)
    database, catalog = await home.database(), Catalog()
    models = RegisteredModels(DataLayout(tmp_path))
    lock = await ControllerLock.acquire(database, on_wait=lambda holder: None)
    await prepare_published(database)
    publisher = Publisher(database, lock, URL, key="k" * 8, catalog=catalog, models=models, engines=dict)
    await publisher.publish()
    follower = ServedFollower(database, Catalog(), key="k" * 8, deadlines=Deadlines())
    await follower.refresh()
    assert follower.controller == URL
    await lock.release()
    new = await ControllerLock.acquire(database, on_wait=lambda holder: None)
    await follower.refresh()
    assert follower.controller is None, "until the new one says where it is"
    late = Publisher(database, lock, "http://old", key="k" * 8, catalog=catalog, models=models, engines=dict)
    with pytest.raises(LostControlError):
        await late.publish()
    async with asyncio.timeout(60):
        await late.run()  # it ends by itself
    assert home.sql("SELECT url FROM controller") == [(None,)]
    for one in (publisher, late, follower):
        await one.close()
    await new.release()
    assert PASSWORD not in database.address.shown
    await home.close()
