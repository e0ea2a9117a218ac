"""The tables of options are what their command prints; each keyword has a row."""

from __future__ import annotations

from make_options_page import KEYS, PAGE, PIPELINE_PAGE, keyword_rows, printed, printed_pipeline

from art.client.train_options import KEYWORDS, REFUSED


def test_the_page_is_what_the_declarations_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == printed(page), "run python tests/promises/docs/make_options_page.py"
    page = PIPELINE_PAGE.read_text(encoding="utf-8")
    assert page == printed_pipeline(page), "run python tests/promises/docs/make_options_page.py"


def test_every_keyword_and_every_key_has_a_row() -> None:
    rows = list(keyword_rows())
    assert len(rows) == len(KEYWORDS) + len(REFUSED) > 30
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for keys in KEYS.values() for name in keys.options)


def test_a_row_that_is_not_as_declared_is_printed_anew() -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = next(keyword_rows())
    for wrong in (page.replace(row, "| `learning_rate` | `1.0` | Nothing. |"), page.replace(f"{row}\n", "")):
        assert wrong != page and printed(wrong) == page
