"""A collector of OpenTelemetry spans in the process of a test: it decodes what comes over the wire."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Span:
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    error: bool
    links: list[str]
    """The ids of the spans that it links to."""
    resource: dict[str, Any]


@dataclass
class Collector:
    url: str = ""
    spans: list[Span] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    schemas: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)

    def named(self, operation: str) -> list[Span]:
        """Returns the spans whose name begins with the operation, in the order of their times."""
        found = [span for span in self.spans if span.name.split()[0] == operation]
        return sorted(found, key=lambda span: span.start)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.requests.append((path, headers))
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _attributes(resource.resource.attributes)
            self.resources.append(about)
            for scope in resource.scope_spans:
                self.schemas.add(scope.schema_url)
                self.spans += [_span(one, about) for one in scope.spans]


def _span(one: Any, resource: dict[str, Any]) -> Span:
    return Span(
        one.name,
        one.trace_id.hex(),
        one.span_id.hex(),
        one.parent_span_id.hex(),
        one.start_time_unix_nano,
        one.end_time_unix_nano,
        _attributes(one.attributes),
        [(event.name, _attributes(event.attributes)) for event in one.events],
        one.status.code == 2,
        [link.span_id.hex() for link in one.links],
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yields a collector that listens. `GET /scalars/PROJECT/MODEL` answers the numbers of its rows."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            unzipped = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            found.take(self.path, {name.lower(): value for name, value in self.headers.items()}, unzipped)
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(json.dumps(_scalars(found, *self.path.split("/")[-2:])).encode())

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Is silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _scalars(found: Collector, project: str, model: str) -> dict[str, dict[int, float]]:
    scalars: dict[str, dict[int, float]] = {}
    for span in found.spans:
        told = span.attributes
        if (told.get("art.project"), told.get("art.model")) == (project, model):
            for name, value in told.items():
                if name.startswith("art.metric."):
                    scalars.setdefault(name.removeprefix("art.metric."), {})[told["art.step"]] = value
    return scalars
