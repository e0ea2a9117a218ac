"""Makes the pictures of docs/guides/see-it.md from a real run, in a real Chromium.

python tests/promises/docs/make_see_it_pictures.py             trains the mail task for 12 steps first
python tests/promises/docs/make_see_it_pictures.py RUNS        the newest run below this folder
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parents[3] / "docs" / "assets" / "see-it"
SIZE = {"width": 1200, "height": 760}
ART = str(Path(sys.executable).with_name("art"))


def open_last_row(page: Page, table: str) -> None:
    page.locator(f"{table} tbody tr").first.locator("th a").click()
    page.wait_for_load_state("networkidle")


def take_pictures(page: Page) -> None:
    """Walks from the runs to the tokens, and keeps what is seen on the way."""
    page.wait_for_selector("table")
    open_last_row(page, ".rows")
    page.screenshot(path=PICTURES / "run.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=PICTURES / "run-dark.png")
    page.emulate_media(color_scheme="light")
    open_last_row(page, "section[aria-labelledby=steps-title] .rows")
    page.locator("a[rel=prev]").click()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / "step.png")
    differing = page.locator("section[aria-labelledby=groups-title] tbody tr").filter(
        has=page.locator(".square.q4")
    )
    differing.filter(has=page.locator(".square.q2, .square.q1, .square.q0")).first.locator("th a").click()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / "group.png")
    column = page.locator(".column").filter(has=page.locator(".differs"))
    (column.first if column.count() else page.locator(".column").first).locator("h3 a").click()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / "rollout.png")
    if page.get_by_label("entropy", exact=True).count():
        page.get_by_label("entropy", exact=True).check()
    page.locator("#tokens-title").evaluate(
        "node => scrollTo(0, node.getBoundingClientRect().top + scrollY - 70)"
    )
    page.locator("[data-tokens] .line span").nth(4).hover()
    page.screenshot(path=PICTURES / "tokens.png")


def main(arguments: list[str]) -> None:
    browser_path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if browser_path is None:
        raise SystemExit("no Chromium is installed: run tests/install_programs.sh")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = arguments[0] if arguments else folder
        if not arguments:
            run = [ART, "quickstart", "mail", "--steps", "12", "--eval-rollouts", "100", "--output"]
            subprocess.run([*run, f"{folder}/mail"], check=True)
        with subprocess.Popen([ART, "ui", root], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                door = re.search(r"http://\S+token=\S+", process.stdout.readline())
                assert door is not None
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
                    page = browser.new_page(viewport=SIZE)  # type: ignore[arg-type]
                    page.goto(door[0])
                    take_pictures(page)
                    browser.close()
            finally:
                process.terminate()


if __name__ == "__main__":
    main(sys.argv[1:])
