"""The page's agreements with other trainers are those of the record, and the record has every case."""

from __future__ import annotations

from crosscheck.__main__ import PAGE, read_record, table_of
from crosscheck.agreements import LIMITS
from crosscheck.cases import CASES


def test_the_page_has_the_table_of_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"<!-- agreements -->\n{table_of(read_record())}<!-- /agreements -->" in text


def test_every_case_agrees_with_a_peer() -> None:
    record = read_record()
    assert {one.case for one in record} == set(CASES), "run `python -m crosscheck --keep`"
    assert not [one for one in record if not one.ok]
    exact = [one for one in record if one.case not in LIMITS]
    page = (PAGE.parents[1] / "get-started" / "why-art.md").read_text(encoding="utf-8")
    assert f"{len(exact)} figures" in page and all(one.difference <= 1e-6 for one in exact)
