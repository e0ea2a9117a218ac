"""The application and custom losses: whose they are, how they end, and what is sent again of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loss_requests import datum, message
from scripted_service import Client, ScriptedServer, serving
from traced_losses import traced

from art_extensions.tinker import app as app_module
from art_extensions.tinker import sessions
from waiting import until

pytestmark = pytest.mark.slow  # torch is loaded, and the store is on disk


def doubled(logprobs: Any, scale: Any) -> Any:
    loss = -(logprobs * scale).sum()
    return loss, {"custom/places:sum": logprobs.exp().sum()}


async def create(client: Client, session: str, number: int = 0) -> Any:
    asked = traced(doubled) | {"session_id": session, "custom_loss_seq_id": number}
    reply = await client.post("create_custom_loss", asked)
    return reply if reply.status_code != 200 else (await client.result(reply.json()["request_id"]))["loss_id"]


async def batch(client: Client, model: str, seq: int, loss_id: str, **columns: Any) -> Any:
    columns = {"target_tokens": [6, 7, 8], **(columns or {"scale": [2.0, 2.0, 0.0]})}
    asked = message(datum([5, 6, 7], **columns), loss_fn="custom", config={"loss_id": loss_id})
    asked.model_id, asked.seq_id = model, seq
    kind = {"content-type": "application/x-protobuf"}
    reply = await client.post("forward_backward", asked.SerializeToString(), **kind)
    return await client.result(reply.json()["request_id"])


async def test_logprobs_are_asked_for_first_and_again_where_gradients_are_lost(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        model, loss = await client.model(session), await create(client, session)
        assert await create(client, session) == loss  # the same number is the same loss
        done = await batch(client, model, 1, loss)
        assert done.metrics["loss:sum"] == pytest.approx(2.0)  # of logprobs of -0.5
        assert done.metrics["custom/places:sum"] == pytest.approx(3 * 0.60653066)
        assert [one[:3] for one in server.calls[1:]] == [("none", 0, 0), ("add", 0, 0)]
        server.held = dict.fromkeys(server.held, 0)  # the trainer was started again
        await client.result(await client.step(model, 2))
        again = [("none", 0, 0), ("add", 0, 0), ("step", 0, 1)]
        assert [one[:3] for one in server.calls[3:6]] == again


async def test_a_loss_is_its_session_s_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "MOST_LOSSES", 2)
    monkeypatch.setattr(sessions, "LOOK_S", 0.01)
    async with serving(tmp_path, ScriptedServer()) as client:
        first, second = await client.session(), await client.session()
        model, loss = await client.model(second), await create(client, first)
        foreign = await batch(client, model, 1, loss)
        assert foreign["category"] == "user" and "of this session: create it" in foreign["error"]
        await create(client, first, 1)
        full = await create(client, first, 2)
        assert full.status_code == 400 and "2 losses at most" in full.json()["detail"]
        other = Client(client.http, "tml-another")
        stolen = await other.post("retrieve_future", {"request_id": loss})
        assert stolen.status_code == 404
        assert (await create(other, first, 3)).status_code == 404
        monkeypatch.setattr(sessions, "SILENT_S", 0.0)

        async def is_gone() -> bool:
            return (await client.post("retrieve_future", {"request_id": loss})).status_code == 404

        await until(is_gone)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"weights": [1.0, 1.0, 1.0]}, "needs data[0].loss_fn_inputs.scale"),
        ({"scale": [[1.0], [1.0], [1.0]]}, "has rank 2"),
        ({"scale": [1.0, 1.0]}, "node 'mul' (operator.mul)"),
        ({"scale": [float("inf"), 1.0, 1.0]}, "not finite"),
    ],
)
async def test_a_datum_that_does_not_fit_its_loss_fails_alone(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        model, loss = await client.model(session), await create(client, session)
        failed = await batch(client, model, 1, loss, **columns)
        assert failed["category"] == "user", failed
        assert said in failed["error"], failed
        assert not [one for one in server.calls if one[0] == "add"]
        await batch(client, model, 2, loss)
        assert (await client.result(await client.step(model, 3)))["metrics"]["learning_rate:mean"] == 1e-3
