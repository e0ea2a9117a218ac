"""The curves of single options: their table, and that of the page."""

from __future__ import annotations

from bench.learning import estimators, options


def test_the_table_of_single_options_is_that_of_its_records() -> None:
    table = options.table_of(options.read_records())
    page = estimators.PAGE.read_text(encoding="utf-8")
    assert f"<!-- options -->\n{table}\n<!-- /options -->" in page
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]] == list(options.METHODS)
    assert all("| 5 |" in line for line in table.splitlines()[2:]), "the page says so of the seeds"
