"""The pages are in plain English: no long sentence, no riddle at its beginning, one spelling for each term.

Messages, labels and log lines of the library keep to the same terms.

Code, tables of fields and figures are not sentences: a sentence ends at `.`, `:`, `;`, `!` or `?`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 40
JARGON = {
    r"\bsettle[sd]?\b": "done, no reward variance, collapses to",
    r"\bset(?:s|ting)? aside\b": "rejected, reserved",
    r"\bthin\b(?! is)|\bthinn(?:ed|ing)\b": "sampling weight",
    r"\bfates?\b": "outcome",
    r"\bsaid before\b": "duplicate",
    r"\bseen\b": "shown, observed, in the training data",
    r"\b(?:is|are|was|were|be|been) told\b": "reported, rendered, passed",
}
"""Words of our own that users do not know, and the field's."""
TERMS = {
    **JARGON,
    r"\b(?:is|are|was|were|be|been) (?:asked|said)\b": "queried, written",
    r"(?<![-\w])off policy": "off-policy",
    r"(?<![-\w])on policy": "on-policy",
    r"data sets?": "dataset",
    r"knows the truth": "oracle",
    r"begins? anew": "restart",
    r"hyper-parameters?": "hyperparameter",
    r"\battempts?\b": "rollout",
    r"\bbalance sheets?\b|\bbooks\b": "rollout accounting",
}
"""A spelling that the pages do not use, and the one that they do."""
_BLOCK = re.compile(r"^```.*?^```$|<!--.*?-->|^    .*$", re.M | re.S)
_RIDDLE = re.compile(r"(Whoever|Whatever|Whose|What(?! is\b| it\b| the\b| differs\b)|That which|Of) ")


def sentences(page: str) -> Iterator[str]:
    """Yields the sentences of a page, those in lists and in the cells of tables included."""
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", _BLOCK.sub("", page)):
        for part in block.strip("|").split(" | ") if block.startswith("|") else [block]:
            if not part.startswith("#"):
                yield from re.split(r"(?<=[.:;!?])\s+", " ".join(part.split()))


def flaws(page: str) -> list[str]:
    """Returns the long sentences, the riddles and the other spellings of a page."""
    found = [f"{len(one.split())} words: {one}" for one in sentences(page) if len(one.split()) > MOST_WORDS]
    found += [f"begins with a riddle: {one}" for one in sentences(page) if _RIDDLE.match(one)]
    prose = re.sub(r"`[^`]*`", "", _BLOCK.sub("", page))
    found += [
        f"write {right!r}: {m[0]!r}" for wrong, right in TERMS.items() for m in re.finditer(wrong, prose)
    ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain(page: Path) -> None:
    assert not flaws(page.read_text(encoding="utf-8"))


def test_a_flaw_is_seen() -> None:
    assert flaws("Whoever asks is told.") and flaws("It is off policy.") and flaws("word " * 41)
    assert not flaws("It is off-policy, as `off policy` is not.\n\n```text\nWhoever asks\n```\n")


def jargon(text: str) -> list[str]:
    """Returns our own words in a text, without what is between backticks."""
    prose = re.sub(r"`[^`]*`", "", text)
    return [
        f"write {right!r}: {m[0]!r} in {' '.join(text.split())[:100]!r}"
        for wrong, right in JARGON.items()
        for m in re.finditer(wrong, prose, re.I)
    ]


def messages(program: str) -> Iterator[str]:
    """Yields the texts of a Python program: strings of several words that are no docstring and no SQL."""
    tree = ast.parse(program)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text.strip() and id(node) not in docstrings:
                if not re.search(r"\b(?:SELECT|INSERT|CREATE|UPDATE|DELETE)\b", text):
                    yield text


def labels(page: str) -> Iterator[str]:
    """Yields the texts of a template of the pages: between tags, and those that a reader hears or hovers."""
    html = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", "", page, flags=re.S)
    for between, attribute in re.findall(r">([^<>]+)<|(?:aria-label|title|placeholder)=\"([^\"]*)\"", html):
        yield between or attribute


def texts(file: Path) -> Iterator[str]:
    """Yields what a user can read of a file of the library."""
    source = file.read_text(encoding="utf-8")
    match file.suffix:
        case ".py" if any(re.search(wrong, source, re.I) for wrong in JARGON):
            yield from messages(source)
        case ".html":
            yield from labels(source)
        case ".js":
            yield from re.findall(r"\"([^\"\n]* [^\"\n]*)\"", re.sub(r"//.*", "", source))
        case ".md":
            yield from sentences(source)


@pytest.mark.slow
def test_messages_and_labels_are_in_the_words_of_the_field() -> None:
    files = [one for one in (ROOT / "src").rglob("*") if one.suffix in (".py", ".html", ".js", ".md")]
    pages = [*(ROOT / "examples").rglob("README.md"), *(ROOT / "bench").glob("*/README.md")]
    found = [(str(one.relative_to(ROOT)), jargon(text)) for one in [*files, *pages] for text in texts(one)]
    assert {name: flaws for name, flaws in found if flaws} == {}


def test_our_own_words_are_found_in_messages_and_labels() -> None:
    program = 'f("""A fate."""); log("%d scenarios are settled", n); say(f"{n} fates of")'
    assert not list(messages('def f():\n    """A fate that is seen."""'))
    assert [one for text in messages(program) for one in jargon(text)] == [
        "write 'outcome': 'fate' in 'A fate.'",
        "write 'done, no reward variance, collapses to': 'settled' in '%d scenarios are settled'",
        "write 'outcome': 'fates' in 'fates of'",
    ]
    page = '<i class="fate" title="{{ seen }}: its fate">{{ fate(1) }}</i><b>Set aside</b>'
    assert [len(jargon(text)) for text in labels(page)] == [1, 1]
