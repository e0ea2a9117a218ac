"""Records the first requests of an agent as it is installed, for `test_first_requests.py`.

    npm install --prefix /tmp/agents @openai/codex
    BY=model_providers.art='{name="art", base_url="{url}/v1", env_key="ART_KEY", wire_api="responses"}'
    python record_first_requests.py codex 0.171.0 --call exec_command '{"cmd": "echo hi"}' \
        --env ART_KEY=none -- /tmp/agents/node_modules/.bin/codex exec --skip-git-repo-check \
        -m art-model -c 'model_provider="art"' -c "$BY" "Say hi."

{url} is the address of a server that answers every dialect's stream: first with a call of the named tool,
then with a text. Run it in an empty folder with a HOME of its own. Texts are cut, names and ids taken out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "first_requests"
LONGEST = 100
_PRIVATE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "0" * 8),
    (re.compile(r"\b[0-9a-f]{32,}\b"), "0" * 8),
    (re.compile(re.escape(os.getcwd())), "/home/user/project"),
    (re.compile(re.escape(os.environ.get("HOME", "/root"))), "/home/user"),
    (re.compile(r"/tmp/[\w/.-]+"), "/tmp/x"),
)
_USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 12,
}
Call = tuple[str, str] | None
Events = list[dict[str, Any]]


def messages(call: Call) -> Events:
    block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Done."}
    if call:
        block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": {}}  # type: ignore[dict-item]
        delta = {"type": "input_json_delta", "partial_json": call[1]}
    head = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": _USAGE,
    }
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": {**head, "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": _USAGE},
        {"type": "message_stop"},
    ]


def responses(call: Call) -> Events:
    item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "Done.", "annotations": []}]
    if call:
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "status": "completed"}
        # The name `item`: the JSON is the item itself, of another type.
        item |= json.loads(call[1]) if call[0] == "item" else {"name": call[0], "arguments": call[1]}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}
    whole = {**head, "status": "completed", "output": [item], "usage": _USAGE}
    events: Events = [
        {"type": "response.created", "response": {**head, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": n} for n, event in enumerate(events)]


def chat_completions(call: Call) -> Events:
    delta: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if call:
        called = {"index": 0, "id": "call_1", "type": "function"}
        called |= {"function": {"name": call[0], "arguments": call[1]}}
        delta = {"role": "assistant", "tool_calls": [called]}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    ends = ((delta, None), ({}, "tool_calls" if call else "stop"))
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    parts = [{"choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in ends]
    return [{**head, **part} for part in (*parts, {"choices": [], "usage": usage})]


def in_one_piece(events: Events) -> dict[str, Any]:
    """The reply of which these are the stream; a stream of Responses has it at its end."""
    if "choices" not in events[0]:
        whole: dict[str, Any] = events[-1].get("response", events[-1])
        return whole
    (said,), (end,) = (one["choices"] for one in events[:2])
    choice = {
        "index": 0,
        "message": {"content": None, **said["delta"]},
        "finish_reason": end["finish_reason"],
    }
    return {**events[-1], "object": "chat.completion", "choices": [choice]}


STREAMS = {"/messages": messages, "/responses": responses, "/chat/completions": chat_completions}


class Recorder(ThreadingHTTPServer):
    """Keeps what it is asked, and answers so that an agent goes on."""

    def __init__(self, call: Call) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.seen: list[dict[str, Any]] = []
        self.call = call
        self.lock = threading.Lock()

    def stream(self, path: str, body: dict[str, Any]) -> Events | None:
        kind = next((kind for kind in STREAMS if path.partition("?")[0].endswith(kind)), None)
        with self.lock:
            call = self.call if body.get("tools") or "additional_tools" in str(body.get("input")) else None
            if kind and call:
                self.call = None
        return STREAMS[kind](call) if kind else None


class Answer(BaseHTTPRequestHandler):
    server: Recorder

    def do_HEAD(self) -> None:
        self.server.seen.append({"method": "HEAD", "path": self.path})
        self.reply(b"", "text/plain")

    def do_GET(self) -> None:
        self.reply(b'{"object": "list", "data": [], "models": []}', "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append({"method": "POST", "path": self.path, "body": body})
        events = self.server.stream(self.path, body)
        if events is None:
            self.reply(b"{}", "application/json")
        elif body.get("stream"):
            named = (f"event: {one['type']}\n" if "type" in one else "" for one in events)
            lines = [f"{name}data: {json.dumps(one)}\n\n" for name, one in zip(named, events, strict=True)]
            self.reply("".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")
        else:
            self.reply(json.dumps(in_one_piece(events)).encode(), "application/json")

    def reply(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def trimmed(value: Any) -> Any:
    """The same shape with short texts that name nobody."""
    if isinstance(value, dict):
        return {name: trimmed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [trimmed(one) for one in value]
    if not isinstance(value, str):
        return value
    for private, instead in _PRIVATE:
        value = private.sub(instead, value)
    return value if len(value) <= LONGEST or value.startswith("{") else f"{value[:LONGEST]}..."


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("agent")
    parser.add_argument("version")
    parser.add_argument("--call", nargs=2, metavar=("TOOL", "JSON"))
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    server = Recorder(asked.call and tuple(asked.call))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def with_url(text: str) -> str:
        return str(text).replace("{url}", f"http://127.0.0.1:{server.server_port}")

    env = dict(with_url(one).split("=", 1) for one in asked.env)
    command = [with_url(part) for part in asked.command]
    subprocess.run(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, timeout=300, check=False)
    kept = {"agent": asked.agent, "version": asked.version, "requests": trimmed(server.seen)}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{asked.agent}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
