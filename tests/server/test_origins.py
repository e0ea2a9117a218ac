"""Pages in browsers: those of the listed origins are answered, all others not."""

from __future__ import annotations

import httpx
import pytest
from live import KEY, Live

from art.errors import ConfigurationError
from art.server.process import with_origins
from art.server.settings import parse_settings

PAGE = "https://chat.example.org"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


def client_of(live: Live, origins: list[str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(with_origins(live.app, origins)), base_url="http://art"
    )


async def test_a_page_of_a_listed_origin_is_answered(live: Live) -> None:
    async with client_of(live, [PAGE]) as client:
        asked = await client.options("/v1/chat/completions", headers={"origin": PAGE, **PREFLIGHT})
        assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in asked.headers["access-control-allow-headers"]
        for key, status in ((KEY, 200), ("wrong", 401)):
            reply = await client.get("/v1/models", headers={"origin": PAGE, "authorization": f"Bearer {key}"})
            assert reply.status_code == status and reply.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("origins", [[], [PAGE]])
async def test_a_page_of_another_origin_is_not(live: Live, origins: list[str]) -> None:
    async with client_of(live, origins) as client:
        for other in ("https://evil.example.org", f"{PAGE}.evil.org", "null"):
            asked = await client.options("/v1/chat/completions", headers={"origin": other, **PREFLIGHT})
            assert asked.status_code >= 400 and "access-control-allow-origin" not in asked.headers
            reply = await client.get(
                "/v1/models", headers={"origin": other, "authorization": f"Bearer {KEY}"}
            )
            assert reply.status_code == 200 and "access-control-allow-origin" not in reply.headers


def test_what_is_no_origin_is_refused() -> None:
    assert parse_settings('{"allow_origins": ["https://a.org", "http://localhost:3000", "*"]}').allow_origins
    assert parse_settings("{}").allow_origins == []
    for wrong in ("a.org", "https://a.org/", "https://*.a.org", "https://a.org/chat", "", "null"):
        with pytest.raises(ConfigurationError, match=r"allow_origins.*an origin is http"):
            parse_settings(f'{{"allow_origins": ["{wrong}"]}}')
