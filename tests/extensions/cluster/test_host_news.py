"""News of a host is one line, whatever its logs hold."""

from __future__ import annotations

import sys

from art.wire.json_lines import one_line
from art_extensions.cluster.messages import HostNews

EVERY_BREAK = "".join(
    mark for mark in map(chr, range(sys.maxunicode + 1)) if len(f"a{mark}b".splitlines()) > 1
)


def test_a_log_of_such_characters_is_news_of_a_host() -> None:
    news = HostNews(log=EVERY_BREAK)
    (line,) = one_line(news.model_dump_json(exclude_none=True)).decode().splitlines()
    assert HostNews.model_validate_json(line).log == EVERY_BREAK
