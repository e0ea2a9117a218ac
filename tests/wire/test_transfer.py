"""The way of an adapter's weights: the one that exists acts, any other is refused by name, everywhere."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from art.engine.remote import RemoteEngine
from art.errors import ConfigurationError
from art.server.settings import EngineSettings
from art.wire.engine import TRANSFERS, LoadAdapter
from art.wire.records import first_flaw

TOLD = "unknown transfer 'nccl'; known: shelf"


async def test_an_unknown_transfer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=TOLD):
        RemoteEngine("http://127.0.0.1:1", "key", transfer="nccl")
    for settings in (
        lambda: EngineSettings(transfer="nccl"),
        lambda: LoadAdapter(name="agent@1", path="/x", transfer="nccl"),
    ):
        with pytest.raises(ValidationError) as refused:
            settings()
        assert TOLD in first_flaw(refused.value).without_value
        assert first_flaw(refused.value).field == "transfer"


def test_the_default_is_a_known_one() -> None:
    assert {EngineSettings().transfer, LoadAdapter(name="agent@1", path="/x").transfer} <= set(TRANSFERS)
