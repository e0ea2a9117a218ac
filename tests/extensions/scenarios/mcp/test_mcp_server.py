from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.scenarios.mcp import HttpServer, InProcessServer, StdioServer, parse_server
from troublesome import create_server


@pytest.mark.parametrize(
    ("spec", "server"),
    [
        ("npx -y 'some server' --fast", StdioServer(command="npx", args=("-y", "some server", "--fast"))),
        (["python", "-m", "x"], StdioServer(command="python", args=("-m", "x"))),
        ("https://host/mcp?key=1", HttpServer(url="https://host/mcp?key=1")),
        (["http://host:8000/mcp"], HttpServer(url="http://host:8000/mcp")),
        (
            {"command": "x", "args": ["y"], "env": {"A": "b"}, "type": "stdio"},
            StdioServer(command="x", args=("y",), env={"A": "b"}),
        ),
        (
            {"url": "https://host/mcp", "headers": {"Authorization": "Bearer s"}, "read_only": ["find"]},
            HttpServer(url="https://host/mcp", headers={"Authorization": "Bearer s"}, read_only=("find",)),
        ),
        (create_server, InProcessServer(server=create_server)),
        (StdioServer(command="x"), StdioServer(command="x")),
    ],
)
def test_servers_are_described_in_the_ways_people_know(spec: Any, server: Any) -> None:
    assert parse_server(spec) == server


def test_a_server_object_of_the_sdk_is_a_server() -> None:
    made = create_server()
    assert parse_server(made) == InProcessServer(server=made)
    assert parse_server(made).label == "troublesome"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "nothing was given"),
        ([], "nothing was given"),
        ("python 'unfinished", "cannot be split"),
        ("https://", "no address"),
        ("htps://host/mcp", "no address"),
        (["https://host/mcp", "more"], "no address"),
        (7, "int object is no MCP server"),
        (object(), "no MCP server"),
        ({"cmd": "x"}, 'has "command" or "url"; this one has [\'cmd\']'),
        ({"command": "x", "header": {}}, "unknown ['header']"),
    ],
)
def test_what_is_no_server_is_refused_with_what_is(spec: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_server(spec)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "server",
    [
        StdioServer(command="serve", args=("--api-key", "s3cret", "--fast"), env={"KEY": "s3cret"}),
        StdioServer(command="serve", args=("--token=s3cret", "--fast")),
        StdioServer(command="serve", args=("--header", "Authorization: Bearer s3cret", "--fast")),
        StdioServer(command="serve", args=("-H", "A: bearer s3cret", "https://h?a_key=s3cret", "--fast")),
        StdioServer(command="serve", args=("postgresql://me:s3cret@host/db", "--fast")),
        StdioServer(command="serve", args=("--config", '{"apiKey": "s3cret"}', "--fast")),
        HttpServer(url="https://user:s3cret@host/mcp?api_key=s3cret", headers={"X-Key": "s3cret"}),
    ],
)
def test_labels_show_no_secrets(server: Any) -> None:
    assert "s3cret" not in server.label
    assert "serve" in server.label or "host/mcp" in server.label
    if isinstance(server, HttpServer):
        assert "s3cret" not in repr(server)
    else:
        assert "--fast" in server.label


@pytest.mark.slow
def test_the_sdk_is_loaded_when_a_server_is_reached_and_no_earlier() -> None:
    code = (
        "import sys, art_extensions.scenarios.mcp\n"
        "art_extensions.scenarios.mcp.parse_server('python x'), art_extensions.scenarios.mcp.Cassette\n"
        "print([name for name in ('mcp', 'httpx2', 'openai', 'torch', 'jsonschema') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
