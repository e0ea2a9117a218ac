"""GET /metrics: what the server counts, in Prometheus' text format.

`prometheus_client` writes the format and is loaded by the first scrape. Its own counters are not used: they
belong to a process, and keep their numbers in files where an environment variable says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.server.catalog import Catalog
from art.server.counts import OTHERS, TENANTS, ControlCounts, Counts, Histogram, WorkerCounts
from art.server.ledger.face import SampleLedger
from art.server.ledger.stitching import Stitcher
from art.server.routes.endpoint import operator_only

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Families = list["Metric"]
_MODEL = ("base_model", "model")
_REPLICA = ("base_model", "replica")
_WORKER = ("base_model", "role", "replica")
_OF_ENGINES = {
    "running": ("gauge", "art_engine_running_requests", "Requests that an engine samples"),
    "waiting": ("gauge", "art_engine_waiting_requests", "Requests in an engine's queue"),
    "prompt_tokens": ("counter", "art_engine_prompt_tokens", "Prompt tokens asked of an engine"),
    "reused_tokens": ("counter", "art_engine_reused_tokens", "Prompt tokens that needed no forward pass"),
}
"""Fields of an engine's health."""


async def nothing_controlled() -> ControlCounts:
    """Returns the counts of a server without workers of its own."""
    return ControlCounts()


class Metrics:
    """The numbers of one server."""

    def __init__(
        self,
        counts: Counts,
        *,
        catalog: Catalog,
        ledger: SampleLedger,
        stitcher: Stitcher,
        control: Callable[[], Awaitable[ControlCounts]] = nothing_controlled,
    ) -> None:
        self._counts, self._catalog, self._ledger = counts, catalog, ledger
        self._stitcher, self._control = stitcher, control

    def route(self) -> Route:
        """Returns the metrics route, to be mounted behind the key check. A tenant gets a 403: the numbers
        cover all users.
        """

        async def metrics(request: Request) -> Response:
            operator_only(request, "it tells of everybody's requests")
            body, media_type = await self.render()
            return Response(body, headers={"content-type": media_type})

        return Route("/metrics", metrics, methods=["GET"])

    async def render(self) -> tuple[bytes, str]:
        """The text, and its media type. Raises: LedgerError, JobStoreError, DiskError."""
        size = await self._ledger.size()
        control = await self._control()
        # Off the event loop: loading the library takes longer than any request may wait.
        families = _Families(await asyncio.to_thread(_library))
        self._about_requests(families)
        self._about_models(families)
        families.gauge("art_ledger_samples", "Samples in the ledger", size.samples)
        families.gauge("art_ledger_bytes", "Size of the ledger's files on disk", size.stored)
        families.gauge("art_ledger_free_bytes", "Bytes of them that later samples will use", size.free)
        families.counter("art_ledger_removed_samples", "Samples that the retention removed", size.removed)
        for state, number in control.jobs.items():
            families.gauge("art_jobs", "Training jobs by state", number, state=state)
        for base, number in control.on_hold.items():
            about = "Requests that wait until an engine is up and awake"
            families.gauge("art_held_requests", about, number, base_model=base)
        _about_workers(families, control.workers)
        return await asyncio.to_thread(_metrics_text, families.collected)

    def _about_requests(self, families: _Families) -> None:
        requests, lag = self._counts.requests, self._counts.lag
        about = "Requests answered, by route, method and status"
        for (route, method, status), number in requests.ended.items():
            labels = {"route": route, "method": method, "status": str(status)}
            families.counter("art_requests", about, number, **labels)
        about = "Parts of requests that do not act: unknown fields, tools that run at a provider"
        for (route, kind), number in self._counts.left_out.items():
            families.counter("art_left_out", about, number, route=route, kind=kind)
        about = "Seconds from a request's head to the last byte of its reply"
        for (route, method), histogram in requests.seconds.items():
            families.histogram("art_request_seconds", about, histogram, route=route, method=method)
        families.gauge("art_requests_in_flight", "Requests being answered, this one too", requests.in_flight)
        families.histogram("art_event_loop_lag_seconds", "How late the event loop calls", lag.seconds)
        families.counter("art_stitched_prompts", "Prompts made of earlier ids", self._stitcher.stitched)
        for reason, number in self._stitcher.forks.items():
            families.counter("art_forks", "Prompts rendered anew, by reason", number, reason=reason)

    def _about_models(self, families: _Families) -> None:
        of, tokens = self._counts.labels.label_of, self._counts.tokens
        for counter, name, about in (
            (tokens.prompt, "art_prompt_tokens", "Tokens of prompts that engines were given"),
            (tokens.sampled, "art_sampled_tokens", "Tokens that engines sampled"),
        ):
            for (base, label), number in counter.items():
                families.counter(name, about, number, base_model=base, model=label)
        promotions: dict[tuple[str, str], int] = {}
        for (base, project, name), number in self._catalog.promotions.items():
            labelled = base, of(project, name)
            promotions[labelled] = promotions.get(labelled, 0) + number
        for (base, label), number in promotions.items():
            about = "Times that another step became the one that is served"
            families.counter("art_promotions", about, number, base_model=base, model=label)
        for project, name, base, step in self._catalog.newest_steps():
            label = of(project, name)
            if label not in (TENANTS, OTHERS):
                families.gauge(
                    "art_model_step", "The step that is served", step, base_model=base, model=label
                )


def _about_workers(families: _Families, workers: Iterable[WorkerCounts]) -> None:
    for worker in workers:
        labels = {"base_model": worker.base_model, "replica": str(worker.replica)}
        families.gauge("art_worker_up", "Whether a worker answers", worker.up, **labels, role=worker.role)
        about = "Times that a worker was started again"
        families.counter("art_worker_restarts", about, worker.restarts, **labels, role=worker.role)
        if worker.role != "engine" or not worker.up:
            continue
        for field, (kind, name, description) in _OF_ENGINES.items():
            if field in worker.health:
                add = families.gauge if kind == "gauge" else families.counter
                add(name, description, worker.health[field], **labels)


class _Families:
    """Metrics with their labels, made as they are named."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._families: dict[str, Any] = {}

    @property
    def collected(self) -> Families:
        return list(self._families.values())

    def gauge(self, name: str, about: str, value: float, **labels: str) -> None:
        self._family("Gauge", name, about, labels).add_metric(list(labels.values()), value)

    def counter(self, name: str, about: str, value: float, **labels: str) -> None:
        self._family("Counter", name, about, labels).add_metric(list(labels.values()), value)

    def histogram(self, name: str, about: str, value: Histogram, **labels: str) -> None:
        family = self._family("Histogram", name, about, labels)
        family.add_metric(list(labels.values()), value.cumulative(), value.sum)

    def _family(self, kind: str, name: str, about: str, labels: Mapping[str, str]) -> Any:
        found = self._families.get(name)
        if found is None:
            make = getattr(self._library, f"{kind}MetricFamily")
            found = self._families[name] = make(name, about, labels=list(labels))
        return found


class _Gathered:
    """A collector of what was gathered for one scrape."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _library() -> Any:
    from prometheus_client import core

    return core


def _metrics_text(families: Families) -> tuple[bytes, str]:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry()
    registry.register(_Gathered(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
