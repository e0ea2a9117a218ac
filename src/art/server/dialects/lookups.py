"""GET routes: the served models, one sample, one rollout."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.server.dialects.dialect import rollout_of
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import SampleRecord
from art.server.models.catalog import Catalog
from art.server.models.served import ServedName
from art.server.rollouts.rollouts import Rollouts
from art.server.rollouts.scope import ScopedRollout
from art.server.tenants.tenancy import Tenant, outside, tenant_in
from art.wire.samples import RolloutInfo, SampleInfo


class Lookups:
    """What can be asked of the catalog and the ledger."""

    def __init__(self, catalog: Catalog, ledger: Ledger, rollouts: Rollouts) -> None:
        self._catalog = catalog
        self._rollouts = rollouts
        self._ledger = ledger
        self.routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/samples/{sample_id}", self.sample, methods=["GET"]),
            Route("/v1/rollouts/{rollout_id:path}", self.rollout, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        """Every served name; in a scoped rollout those that may be asked for there."""
        tenant, scoped = tenant_in(request.scope), self._scoped(request)
        rows = self._catalog.served(tenant)
        if scoped is not None:
            row = self._catalog.describe(scoped.model, tenant)
            bases = [base for base in rows if base.id == row.base_model and scoped.record.allow_base]
            rows = [*(replace(row, id=name) for name in scoped.listed_names()), *bases]
        return JSONResponse({"object": "list", "data": [_model(row) for row in rows]})

    async def model(self, request: Request) -> Response:
        """One served name. Raises: NotFoundError listing the others."""
        name, tenant = request.path_params["model"], tenant_in(request.scope)
        scoped = self._scoped(request)
        if scoped is None:
            return JSONResponse(_model(self._catalog.describe(name, tenant)))
        meant = scoped.name_meant(name, is_base=self._catalog.has_base(name, tenant))
        return JSONResponse(_model(replace(self._catalog.describe(meant, tenant), id=name)))

    async def sample(self, request: Request) -> Response:
        """One sample: ids, logprobs, where it comes from. Raises: NotFoundError."""
        tenant = tenant_in(request.scope)
        (record,) = await self._ledger.samples([request.path_params["sample_id"]], tenant=tenant)
        return _json(sample_info(record, tenant))

    async def rollout(self, request: Request) -> Response:
        """The samples of a rollout; none for one that was never seen."""
        rollout_id, tenant = request.path_params["rollout_id"], tenant_in(request.scope)
        records = await self._ledger.rollout(rollout_id, tenant=tenant)
        forks = Counter(record.fork_reason for record in records if record.fork_reason is not None)
        samples = [sample_info(record, tenant) for record in records]
        return _json(RolloutInfo(rollout_id=rollout_id, samples=samples, forks=dict(forks)))

    def _scoped(self, request: Request) -> ScopedRollout | None:
        rollout_id = rollout_of(request.scope)
        if rollout_id is None:
            return None
        return self._rollouts.open_one(rollout_id, tenant_in(request.scope))


def sample_info(record: SampleRecord, tenant: Tenant) -> SampleInfo:
    """A record as it is told to clients."""
    return SampleInfo(
        sample_id=record.sample_id,
        rollout_id=record.rollout_id,
        project=outside(tenant, record.project) if record.project else None,
        model=record.model,
        step=record.step,
        parent_id=record.parent_id,
        fork_reason=record.fork_reason,
        prompt_ids=record.prompt_ids.tolist(),
        completion_ids=record.completion_ids.tolist(),
        completion_logprobs=record.completion_logprobs.tolist(),
        sampling=record.sampling,
        finish_reason=record.finish_reason,
        created_at=record.created_at,
    )


def _json(info: SampleInfo | RolloutInfo) -> Response:
    return Response(info.model_dump_json(), media_type="application/json")


def _model(row: ServedName) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "model",
        "created": 0,
        "owned_by": row.project or "art",
        "base_model": row.base_model,
        "step": row.step,
    }
