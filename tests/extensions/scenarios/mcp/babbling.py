"""An MCP server of an older protocol version, by hand: it greets people on its output, and misbehaves there.

`python babbling.py MODE`: what calling its only tool does; the answer is the number of the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

CALLS: list[str] = []
TOOL = {"name": "go", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


def misbehave(mode: str) -> str:
    if mode == "one endless line":
        while True:
            sys.stdout.write("x" * 65536)
    if mode == "endless lines":
        while True:
            sys.stdout.write("progress: 1 %\n")
    if mode == "leaves a child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        sys.stderr.write(f"child {child.pid}\n")
        sys.stderr.flush()
        os._exit(3)
    if mode == "dies":
        sys.stderr.write("the disk is on fire\n")
        sys.stderr.flush()
        os._exit(7)
    if mode.startswith("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "stubborn family":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        return f"{os.getpid()} {child.pid}"
    if mode.startswith("dies once") and not os.path.exists(marker := mode.removeprefix("dies once ")):
        open(marker, "x").close()
        sys.stderr.write("the disk is on fire\n")
        sys.stderr.flush()
        os._exit(7)
    if mode == "hangs the second time" and CALLS:
        time.sleep(1000)
    CALLS.append(mode)
    return str(os.getpid())


def answer(message: dict[str, Any], mode: str) -> dict[str, Any]:
    method = message["method"]
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "babbling", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": [{"type": "text", "text": misbehave(mode)}]}


def main(mode: str) -> None:
    sys.stdout.write("Welcome to the babbling server!\n\n")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] in ("initialize", "tools/list", "tools/call"):
            reply["result"] = answer(message, mode)
        else:
            reply["error"] = {"code": -32601, "message": "no such method"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    if mode.startswith("stubborn"):
        time.sleep(1000)


if __name__ == "__main__":
    main(sys.argv[1])
