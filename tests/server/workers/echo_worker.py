"""A worker that keeps the start-up contract and does nothing: `behaviour` in its config says how it
misbehaves.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
import time


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers["Authorization"] != f"Bearer {self.server.key}":  # type: ignore[attr-defined]
            self.send_error(401)
            return
        body = json.dumps({"pid": os.getpid(), "rendezvous": 4711}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Keeps what it was told on standard error, its log."""
        told = self.rfile.read(int(self.headers["Content-Length"])).decode()
        sys.stderr.write(f"{self.path} {told}\n")
        sys.stderr.flush()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        return


def main() -> None:
    config = json.loads(sys.stdin.readline())
    behaviour = config.get("behaviour", "serve")
    if "gang" in config:
        behaviour = config.get("behaviours", {}).get(str(config["gang"]["rank"]), behaviour)
    sys.stderr.write(f"starting as {behaviour}\n")
    sys.stderr.flush()
    if behaviour == "die early":
        raise SystemExit("no model here")
    if behaviour == "never ready":
        time.sleep(600)
    if behaviour == "refuse":
        sys.stdout.write(json.dumps({"ready": False, "error": "the folder is empty"}) + "\n")
        raise SystemExit(1)
    if behaviour == "chatty":
        sys.stdout.write("a library says hello\n")
    server = http.server.ThreadingHTTPServer((config.get("host", "127.0.0.1"), 0), Health)
    server.key = config["key"]  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps({"ready": True, "port": server.server_port}) + "\n")
    sys.stdout.flush()
    if behaviour == "chatty":
        threading.Thread(target=lambda: [print("x" * 1000) for _ in range(1000)], daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if behaviour == "lose others":
        signal.signal(signal.SIGUSR2, lambda *_: os._exit(75))
    if behaviour == "deaf":
        time.sleep(600)
    while sys.stdin.readline():
        continue


if __name__ == "__main__":
    main()
