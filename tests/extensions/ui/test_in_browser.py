"""The pages in a real Chromium: by keyboard alone, in both schemes, on a phone, and with hostile texts."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_run import MadeRun, begin_job, made_run, made_run_of_turns, trajectory
from served_pages import ServedPages, Watched

from art_extensions.ui.app import export_runs
from waiting import DEADLINE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
FINDINGS = (
    "axe.run().then(found => "
    "JSON.stringify(found.violations.map(one => [one.id, one.nodes.map(node => node.html)])))"
)
RUN = "/runs/-/games/player"
PAGES = (
    "/",
    "/live",
    RUN,
    f"{RUN}/costs",
    f"{RUN}/rollouts",
    f"{RUN}/train/2",
    f"{RUN}/train/2/0",
    f"{RUN}/train/2/0/0",
)
COMPARED = "/compare?run=-/games/player&run=-/games/fork"
HOSTILE = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '"><svg/onload=document.title=`owned`>',
    "</pre></span></article></main><h1>owned</h1>",
    "'-document.title='owned'-'",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "\u202egnp.exe\u202c \u200b\u2066 \x00\x1b[31m\x9b \ufeff",
    "javascript:document.title='owned'",
    "]]><!--",
    "\\u003cscript>",
    "a" * 30_000,
    "../../../../etc/passwd",
)
NAMES = ("<svg onload=alert(1)>", "a'b\"c", "\u202edrowssap", "%2e%2e", "x?y#z&token=1", "{{7*7}}")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing(tmp_path: Path, watch: Callable[..., Watched], scheme: str, width: int) -> None:
    made_run(tmp_path / "full").history(2, **{"train/exception_rate": 0.2, "loss/clipped_share": 0.9})
    fork = MadeRun(tmp_path / "full", name="fork")
    (fork.model / "registration.json").write_text(json.dumps({"origin": "games/player@1", "lora": {"r": 8}}))
    fork.checkpoint(1)
    (tmp_path / "empty").mkdir()
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    shown, empty = (watch(tmp_path / folder, **options) for folder in ("full", "empty"))
    for one, paths in ((shown, (*PAGES, COMPARED, "/nothing")), (empty, ("/",))):
        for path in paths:
            page = one.open(path)
            if path.endswith("/0/0"):
                page.keyboard.press("?")  # the help is on top of this one
            one.evaluate(AXE)
            assert json.loads(one.evaluate(FINDINGS)) == [], path
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is too wide"


@pytest.mark.parametrize("mount", ["", "/ui"])
def test_from_runs_to_a_token_by_keyboard_alone(
    tmp_path: Path, watch: Callable[..., Watched], mount: str
) -> None:
    made_run(tmp_path)
    shown = watch(tmp_path, mount)
    page = shown.open("/")
    for key, then in (("ArrowDown", RUN), ("ArrowDown", f"{RUN}/train/2"), ("End", f"{RUN}/train/2/1")):
        page.keyboard.press(key)
        page.keyboard.press("Enter")
        page.wait_for_url(shown.served.address + then)
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(f"**{RUN}/train/2/0")
    page.get_by_role("link", name="Rollout 0").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUN}/train/2/0/0")
    page.locator("[data-tokens]").focus()
    page.keyboard.press("End")
    assert '"<|im_end|>"' in page.locator("[data-inspector]").inner_text()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    inspector = page.locator("[data-inspector]").inner_text()
    assert inspector.startswith('"h"') and "logprob -1.01" in inspector and "p 0.364" in inspector
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("u")
    page.wait_for_url(f"**{RUN}/train/2/0")
    assert shown.reports == []


def test_the_list_has_few_rows_jumps_anywhere_and_opens_by_enter(
    tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    made = MadeRun(tmp_path)
    groups = [[trajectory(f"r{g}.{t}", float(t), f"w{g}") for t in range(5)] for g in range(120)]
    made.step(1, groups)
    shown = watch(tmp_path)
    page = shown.open(f"{RUN}/rollouts")
    body, rows = page.locator(".list-body"), page.locator(".list-row")
    body.focus()
    page.keyboard.press("End")
    page.locator("#row-600").get_by_text("train 1 · 119 · 4").wait_for()
    assert rows.count() < 60 and page.locator(".list-row.active").get_attribute("id") == "row-600"
    page.locator("[name=order]").select_option("reward")
    page.locator("[name=way]").select_option("down")
    page.locator("#row-0").get_by_text("4.000").wait_for()
    page.locator("[name=text]").fill("no such text")
    page.get_by_text("No rollout fits").wait_for()
    page.locator("[name=text]").fill("")
    page.locator("[name=fate]").select_option("failed")
    page.locator("[data-count]").get_by_text("1 rollouts").wait_for()
    body.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUN}/train/1/0/5")
    assert "TimeoutError: too slow" in page.inner_text("main") and shown.reports == []


@pytest.mark.parametrize("width", [1280, 390])
def test_each_turn_shows_its_reward_and_advantage(
    tmp_path: Path, watch: Callable[..., Watched], width: int
) -> None:
    made_run_of_turns(tmp_path)
    shown = watch(tmp_path, viewport={"width": width, "height": 800})
    page = shown.open(f"{RUN}/train/1/0/0")
    heads = [one.inner_text() for one in page.locator(".turn.sampled .turn-head").all()]
    assert len(heads) == 2
    assert "reward 0.250, counts as 1.250" in heads[0] and "advantage +0.750" in heads[0]
    assert "reward 0.000, counts as 1.000" in heads[1] and "advantage −0.125" in heads[1].replace("-", "−")
    page.evaluate(AXE)
    assert json.loads(page.evaluate(FINDINGS)) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth") and shown.reports == []


def test_charts_are_pinned_and_runs_are_searched(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    made = made_run(tmp_path)
    made.history(1, **{"val/reward": 0.5, "val/reward_sem": 0.1})
    for seed in (1, 2):
        run = MadeRun(tmp_path, name=f"walk-{seed}")
        (run.model / "model.json").write_text(json.dumps({"config": {"seed": seed, "tags": ["long"]}}))
        run.history(1, **{"train/reward": 0.5 * seed, "loss/entropy": 1.0})
    shown = watch(tmp_path)
    page = shown.open(RUN)
    page.locator("[name=metric]").fill("loss/entropy")
    page.keyboard.press("Enter")
    page.locator("[data-pinned] .uplot canvas").wait_for()
    assert "pin=loss%2Fentropy" in page.url
    page = shown.open("/runs/-/games/walk-1")
    page.locator("[data-pinned] .uplot canvas").wait_for()
    page.get_by_role("button", name="Unpin loss/entropy").click()
    assert page.locator("[data-pinned] figure").count() == 0 and "pin=" not in page.url
    page = shown.open("/?text=WALK")
    rows, count = page.locator("tr[data-words]:visible"), page.locator("output[data-count]")
    assert count.inner_text() == "2 runs" and rows.count() == 0, "seeds are on one row"
    assert page.get_by_role("button", name="Compare the chosen runs").is_disabled()
    page.locator("[data-unfold]").click()
    assert rows.count() == 2
    page.get_by_label("Compare all seeds of games/walk").check()
    assert page.locator("[name=run]:checked").count() == 2
    page.locator("[name=text]").fill("seed=2")
    assert count.inner_text() == "1 run" and rows.count() == 1
    page.locator("[name=text]").fill("no such run")
    page.get_by_text("No run fits").wait_for()
    page.locator("[name=text]").fill("")
    page.locator("[name=tag]").select_option("long")
    assert count.inner_text() == "2 runs" and page.url.endswith("?tag=long") and shown.reports == []


def test_the_colour_of_tokens_is_another_signal(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    made_run(tmp_path)
    shown = watch(tmp_path)
    page = shown.open(f"{RUN}/train/2/0/0")
    colour = "getComputedStyle(document.querySelectorAll('#sample-1 .line span')[{}]).backgroundColor"
    plain = page.evaluate(colour.format(0))
    seen = {plain}
    for signal in ("ratio", "advantage", "entropy", "mask"):
        page.get_by_label(signal, exact=True).check()
        seen.add(page.evaluate(colour.format(6)))
    assert len(seen) >= 4 and page.evaluate(colour.format(0)) != plain


def test_a_finding_leads_to_its_examples(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    made_run(tmp_path).history(2, **{"train/exception_rate": 0.2})
    shown = watch(tmp_path)
    page = shown.open(RUN)
    note = page.get_by_role("region", name="Notes")
    assert "20% of the rollouts failed, most often 'TimeoutError: too slow'" in note.inner_text()
    note.get_by_role("link", name="step 2", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUN}/train/2")
    page.get_by_role("region", name="Notes").get_by_role("link", name="step 2, group 0, rollout 2").click()
    page.wait_for_url(f"**{RUN}/train/2/0/2")
    assert "TimeoutError: too slow" in page.inner_text("main") and shown.reports == []


def hostile_run(root: Path, name: str) -> None:
    """Every text and name of a run is hostile."""
    made = MadeRun(root, project=name, name=name)
    trajectories = []
    for number, text in enumerate(HOSTILE):
        one = trajectory(f"r{number}", 1.0, text, text=text)
        one.metadata = {"scenario_id": text, text[:200]: text, "show": text}
        one.metrics = {text[:200]: 1.0}
        one.logs = [f"{text[:200]} explanation: {text}", text]
        trajectories.append(one)
    made.step(1, [trajectories])
    lines = (made.model / "steps" / "0001" / "rollouts.jsonl").read_text().splitlines()
    for place, text in enumerate(HOSTILE):
        found = json.loads(lines[place])
        found |= {
            "judge": {"name": text[:100], "words": text, "question": text},
            "fate": text[:100],
            "forks": {text[:100]: 1},
        }
        lines[place] = json.dumps(found)
    (made.model / "steps" / "0001" / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    made.history(1, **{HOSTILE[0]: 1.0, "train/reward": 1.0, "train/exception_rate": 0.5})
    made.history(1, **{f"train/group_judge/alarm_{HOSTILE[1]}": 1.0})
    failed = json.loads(lines[-1]) | {"failure": {"type": HOSTILE[0], "message": HOSTILE[2]}}
    lines[-1] = json.dumps(failed)
    (made.model / "steps" / "0001" / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    made.history(2, **{"train/reward": 1.0})
    made.checkpoint(1)
    (made.model / "registration.json").write_text(json.dumps({"base_model": HOSTILE[0], HOSTILE[2]: HOSTILE}))
    printable = "".join(c for c in "".join(HOSTILE[:6]) if "!" <= c <= "~")
    made.samples({"r0-0": (printable, printable), "r0-1": (printable, printable)}, fork=HOSTILE[1])
    begin_job(root, HOSTILE[1], project=name, name=name, done=5)
    with closing(sqlite3.connect(root / "server" / "ledger.sqlite")) as file, file:
        values = (HOSTILE[1], HOSTILE[4], HOSTILE[3], time.time())
        file.execute("UPDATE samples SET rollout_id = ?, project = ?, model = ?, created_at = ?", values)
    with closing(sqlite3.connect(root / "server" / "jobs.sqlite")) as file, file:
        file.execute("UPDATE jobs SET phase = ?", (HOSTILE[0],))


def test_hostile_texts_and_names_stay_text(tmp_path: Path, watch: Callable[..., Watched]) -> None:
    for number, name in enumerate(NAMES):
        hostile_run(tmp_path / f"{number}{name}", name)
    shown = watch(tmp_path)
    page = shown.open("/")
    runs = page.locator("tbody th a").evaluate_all("links => links.map(one => one.getAttribute('href'))")
    assert len(runs) == len(NAMES)
    visited = ["/", "/live", *(f"/compare?run={run.removeprefix('/runs/')}" for run in runs)]
    for run in runs:
        visited += [run, f"{run}/train/1", f"{run}/rollouts", f"{run}/costs"]
    visited += [f"{runs[0]}/train/1/0", *(f"{runs[0]}/train/1/0/{place}" for place in range(len(HOSTILE)))]
    for path in visited:
        page = shown.open(path)
        assert page.title().endswith("· ART") and "owned" not in page.title().split("·")[0], path
        assert page.locator("h1").count() == 1 and page.locator("main > h1:text('owned')").count() == 0, path
        assert (
            page.evaluate("document.scripts.length") == 9 and page.locator("svg[onload], img").count() == 0
        ), path
        shows = page.inner_text("body")
        assert not re.search("[\u202e\u2066\u200b\x1b\x9b]", shows), path
    assert shown.reports == []


def test_without_a_cookie_a_browser_gets_words_and_no_page(
    tmp_path: Path, browser: Browser, serve: Callable[[Path], ServedPages]
) -> None:
    made_run(tmp_path)
    context = browser.new_context()
    context.set_default_timeout(1000 * DEADLINE_S)
    page = context.new_page()
    page.goto(serve(tmp_path).address + RUN)
    assert "has not opened a link" in page.inner_text("main") and "games" not in page.content().replace(
        RUN, ""
    )
    context.close()


def test_exported_pages_open_from_a_folder_without_a_server(tmp_path: Path, browser: Browser) -> None:
    made_run(tmp_path / "one")
    hostile_run(tmp_path / "two", NAMES[0])
    kept = tmp_path / "kept"
    with ThreadPoolExecutor(1) as thread:  # the browser has an event loop in this one
        assert thread.submit(export_runs, tmp_path, kept).result() > 20
    context = browser.new_context(offline=True)
    context.set_default_timeout(1000 * DEADLINE_S)
    page, reports = context.new_page(), list[str]()
    page.on("console", lambda message: reports.append(message.text))
    page.on("pageerror", lambda error: reports.append(str(error)))
    page.goto((kept / "index.html").as_uri())
    page.get_by_role("link", name="games/player").click()
    page.locator(".uplot canvas").first.wait_for()
    page.locator("section[aria-labelledby=steps-title] tbody th a").first.click()
    page.locator("[name=fate]").select_option("failed")
    page.get_by_text("1 rollouts").wait_for()
    page.locator("[name=fate]").select_option("")
    page.locator("[name=order]").select_option("reward")
    page.locator("[name=way]").select_option("down")
    page.locator("#row-0").get_by_text("1.000").wait_for()
    page.locator(".list-body").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**/one/games/player/train/2/*/*/index.html")
    assert "Conversation" in page.inner_text("main")
    page.locator(".crumbs .brand").click()
    page.locator("tbody th a").filter(has_text="onload").click()
    assert page.locator("h1").inner_text().startswith(NAMES[0]) and page.title().endswith("· ART")
    assert reports == []
    context.close()
