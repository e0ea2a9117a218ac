"""The routes of scoped rollouts (`art.wire.rollouts`)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from art.server.rollouts.rollouts import Rollouts
from art.server.routes.endpoint import named, read_body, reply
from art.server.tenants.tenancy import tenant_in
from art.wire.rollouts import OpenRolloutRequest, RolloutForgotten

_ONE = "/art/rollouts/{rollout_id}"


def rollout_routes(rollouts: Rollouts) -> list[BaseRoute]:
    """To be mounted behind the key check, which says who asks."""

    async def open_rollout(request: Request) -> Response:
        asked = await read_body(request, OpenRolloutRequest)
        return reply(request, await rollouts.open(asked, tenant_in(request.scope)))

    async def exchanges(request: Request) -> Response:
        return reply(request, await rollouts.exchanges(_id(request), tenant_in(request.scope)))

    async def close(request: Request) -> Response:
        return reply(request, await rollouts.close(_id(request), tenant_in(request.scope)))

    async def forget(request: Request) -> Response:
        await rollouts.forget(_id(request), tenant_in(request.scope))
        return reply(request, RolloutForgotten(rollout_id=_id(request)))

    return [
        Route("/art/rollouts", named(open_rollout), methods=["POST"]),
        Route(_ONE, named(exchanges), methods=["GET"]),
        Route(_ONE, named(forget), methods=["DELETE"]),
        Route(f"{_ONE}/close", named(close), methods=["POST"]),
    ]


def _id(request: Request) -> str:
    rollout_id: str = request.path_params["rollout_id"]
    return rollout_id
