"""What once was a failure of the server is a refusal that says why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from live import KEY, Live
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.engine.base_models import resolve_base
from art.errors import ConfigurationError
from art.server.app import App
from art.server.checkpoints.registered_models import adapter_folder
from art.server.settings import LimitSettings
from art.wire.engine import EngineScoreReply
from art.wire.training import ScoreReply
from waiting import DEADLINE_S


@pytest.mark.parametrize("name", ["x" * 5000, "y" * 300, "~nobody-of-this-name/model"])
def test_a_name_that_no_folder_can_have_is_refused_by_its_name(name: str) -> None:
    for reads in (adapter_folder, resolve_base):
        with pytest.raises(ConfigurationError, match="is no built-in model") as refused:
            reads(name)
        assert len(str(refused.value)) < 400


def test_scores_that_are_no_numbers_come_through_json() -> None:
    for kind, fields in ((ScoreReply, {"step": 1}), (EngineScoreReply, {})):
        sent = kind(**fields, logprobs=[[-1.0, float("nan")]])  # type: ignore[arg-type]
        (row,) = kind.model_validate_json(sent.model_dump_json()).logprobs
        assert row[0] == -1.0 and row[1] != row[1]


async def test_a_request_that_outlives_the_server_is_told_so_in_json(live: Live, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def register(request: Request) -> Response:
        asked.set()
        await asyncio.sleep(600)
        raise AssertionError

    app = App(
        key=KEY,
        catalog=live.catalog,
        ledger=live.ledger,
        stitcher=live.stitcher,
        limits=LimitSettings(),
        control_routes=[Route("/art/models", register, methods=["POST"])],
    )
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/art/models",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {KEY}".encode())],
    }
    task = asyncio.create_task(app(scope, receive, send))
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    task.cancel()
    await asyncio.wait_for(task, DEADLINE_S)
    assert sent[0]["status"] == 503
    error = orjson.loads(sent[1]["body"])["error"]
    assert error["code"] == "server_closing" and "closing" in error["message"]


async def test_a_defect_of_the_server_names_the_log_to_its_operator(live: Live, tmp_path: Path) -> None:
    async def meet_defect(request: Request) -> Response:
        raise ZeroDivisionError

    log = tmp_path / "server.log"
    app = App(
        key=KEY,
        catalog=live.catalog,
        ledger=live.ledger,
        stitcher=live.stitcher,
        limits=LimitSettings(),
        control_routes=[Route("/art/models", meet_defect)],
    )
    app.log_file = log
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://art") as client:
        failed = await client.get("/art/models", headers={"authorization": f"Bearer {KEY}"})
        assert failed.status_code == 500
        assert (
            failed.json()["error"]["message"]
            == f"internal error; the traceback is in the server's log: {log}"
        )
        assert str(log) not in (await client.get("/art/models")).text
