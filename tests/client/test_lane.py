"""The short way against servers that misbehave: it gives up, and never returns a wrong reply."""

from __future__ import annotations

import asyncio

import pytest

from art.client.http.fast_http import Lane, LaneError
from waiting import DEADLINE_S, until

REQUEST = b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"


class Server:
    """Answers each request with the next of `replies`: pieces of bytes; None closes the connection."""

    def __init__(self, *replies: list[bytes | None]) -> None:
        self.replies = list(replies)
        self.connections = 0

    async def __aenter__(self) -> Lane:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Lane("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.replies:
                await reader.readuntil(b"\r\n\r\n")
                for piece in self.replies.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


def reply(body: bytes, *, status: int = 200, head: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


async def test_pieces_are_put_together():
    whole = reply(b"0123456789", head="Retry-After: 3\r\n")
    async with Server([whole[i : i + 1] for i in range(len(whole))], [whole[:30], whole[30:]]) as lane:
        for _ in range(2):
            got = await lane.post(REQUEST, timeout=DEADLINE_S)
            assert (got.status, got.body, got.header(b"retry-after")) == (200, b"0123456789", "3")


async def test_connections_are_used_again_unless_the_server_says_close():
    server = Server([reply(b"1")], [reply(b"2", head="Connection: close\r\n")], [reply(b"3")])
    async with server as lane:
        assert [(await lane.post(REQUEST, timeout=DEADLINE_S)).body for _ in range(3)] == [b"1", b"2", b"3"]
    assert server.connections == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [None],
        [b"HTTP/1.1 200 OK\r\nContent-Le", None],
        [reply(b"0123456789")[:-3], None],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na"],
        [b"nonsense\r\n\r\n"],
        [b"x" * 70_000],
    ],
)
async def test_what_cannot_be_read_is_given_up(pieces):
    server = Server(pieces, [reply(b"fine")])
    async with server as lane:
        with pytest.raises(LaneError):
            await lane.post(REQUEST, timeout=DEADLINE_S)
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"fine"


async def test_surplus_bytes_are_never_taken_for_the_next_reply():
    async with Server([reply(b"1") + reply(b"wrong")], [reply(b"2")]) as lane:
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"1"
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"2"


async def test_a_reply_that_comes_after_its_deadline_is_not_the_next_one_s():
    async with Server([b"", b"", b"", reply(b"late")], [reply(b"2")]) as lane:
        with pytest.raises(LaneError, match="no reply within"):
            await lane.post(REQUEST, timeout=0.001)
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"2"


async def test_a_connection_closed_while_idle_is_not_used():
    server = Server([reply(b"1"), None], [reply(b"2")])
    async with server as lane:
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"1"
        (idle,) = lane._of_loop.get().idle
        await until(lambda: idle.transport is None)
        assert (await lane.post(REQUEST, timeout=DEADLINE_S)).body == b"2"


async def test_the_pool_is_bounded():
    server = Server(*[[reply(b"x")]] * 20)
    async with server as lane:
        narrow = Lane(lane.host, lane.port, max_connections=2)
        await asyncio.gather(*(narrow.post(REQUEST, timeout=DEADLINE_S) for _ in range(20)))
        narrow.close()
    assert server.connections == 2
