"""The tables of options are what their command prints; each keyword has a row."""

from __future__ import annotations

from make_options_page import APPENDIX, KEYS, PAGE, PIPELINE_PAGE, keyword_rows, printed, printed_pipeline

from art.client.options.train_options import KEYWORDS, REFUSED
from art.tracking.sinks.registry import known_sinks


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


def test_every_tracker_has_a_row() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Trackers of a model\n")[1].split("\n## ")[0]
    names = [line.split("`")[1].strip('"') for line in section.splitlines() if line.startswith('| `"')]
    assert sorted(names) == sorted(known_sinks())


def test_a_row_that_is_not_as_declared_is_printed_anew() -> None:
    page = PAGE.read_text(encoding="utf-8")
    row = next(keyword_rows())
    for wrong in (page.replace(row, "| `learning_rate` | `1.0` | Nothing. |"), page.replace(f"{row}\n", "")):
        assert wrong != page and printed(wrong) == page


def test_the_ten_options_are_ten_with_the_defaults_of_the_code() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Ten options to know first\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    for name in ("learning_rate", "algorithm", "kl_penalty_coef"):
        row = next(row for row in rows if row.startswith(f"| `{name}` |"))
        assert f"`{KEYWORDS[name].default!r}`" in row


def test_options_that_act_come_before_the_appendix_of_those_that_do_not() -> None:
    acting, appendix = PAGE.read_text(encoding="utf-8").split(f"\n## {APPENDIX}\n")
    for keys in KEYS.values():
        for name, key in keys.options.items():
            assert f"`{name}`" in (acting if key.effect == "acts" else appendix), name
