"""A proxy that keeps the sampled tokens of each completion that passes through it, by the ids on the wire."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

HOP = frozenset({"host", "content-length", "accept-encoding", "connection", "transfer-encoding"})


class CountingProxy:
    """Stands before a server while it is entered: `url` is its address.

    It asks for the ids of each completion, which the program does not, and passes on all else as it is.
    """

    def __init__(self, server: str) -> None:
        self.counted: list[tuple[str, list[int]]] = []
        """The sample that each reply names, and the ids that it has."""
        proxy, self._lock = self, threading.Lock()

        class Passing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                is_asked = self.path.endswith("/chat/completions")
                if is_asked:
                    body = json.dumps({**json.loads(body), "return_token_ids": True}).encode()
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                with httpx.stream(
                    self.command, f"{server}{self.path}", headers=headers, content=body, timeout=240
                ) as reply:
                    self.send_response(reply.status_code)
                    self.send_header("content-type", reply.headers.get("content-type", "text/plain"))
                    self.end_headers()
                    passed = last = b""
                    for part in reply.iter_bytes():
                        self._pass(last)
                        passed, last = passed + part, part
                if is_asked and reply.status_code == 200:
                    proxy._count(passed.decode())
                self._pass(last)  # whoever has the whole reply finds it counted

            def _pass(self, part: bytes) -> None:
                self.wfile.write(part)
                self.wfile.flush()

            do_GET = do_PUT = do_DELETE = do_PATCH = do_POST

            def log_message(self, format: str, *arguments: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _count(self, passed: str) -> None:
        is_stream = passed.startswith(("data:", ":", "event:"))
        lines = [
            line.removeprefix("data:").strip() for line in passed.splitlines() if line.startswith("data:")
        ]
        parts = [json.loads(line) for line in (lines if is_stream else [passed]) if line != "[DONE]"]
        ids = [one for part in parts for choice in part["choices"] for one in choice.get("token_ids") or ()]
        with self._lock:
            self.counted.append((str(parts[0]["id"]).removeprefix("chatcmpl-"), ids))
