"""Every control of the page, used in headless Chromium. Skipped where Playwright or the browser is not there.

The page is that of LOOK_PAGE: a report.html of the study `reference`.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(path).exists()), None)
FILE = Path(os.environ.get("LOOK_PAGE", "missing"))
pytestmark = pytest.mark.skipif(CHROMIUM is None or not FILE.exists(), reason="no Chromium, or no page in LOOK_PAGE")
ADDRESS = FILE.absolute().as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


class Look:
    """The page in a tab of its own, which must neither complain nor ask for anything."""

    def __init__(self, browser: Any, width: int = 1280, **options: Any) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page, self.faults = context.new_page(), list[str]()
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((ADDRESS, "data:", "blob:", "about:")):
            self.faults.append(request.url)

    def open(self, state: str = "") -> Look:
        self.page.goto("about:blank")
        self.page.goto(f"{ADDRESS}#{state}")
        self.page.wait_for_timeout(250)
        return self

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.page.wait_for_timeout(120)

    def click(self, text: str) -> None:
        self.page.locator("#look button", has_text=text).first.click()
        self.page.wait_for_timeout(120)

    def choose(self, control: str, **option: Any) -> None:
        self.page.locator("#look label", has_text=control).locator("select").select_option(**option)
        self.page.wait_for_timeout(120)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def save(self, kind: str) -> bytes:
        with self.page.expect_download() as download:
            self.page.locator(".actions button", has_text=kind).click()
        return Path(download.value.path()).read_bytes()

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.save("CSV").decode(), newline="")))

    @property
    def state(self) -> str:
        return self.page.evaluate("location.hash")


@pytest.fixture
def look(browser: Any) -> Iterator[Look]:
    made = Look(browser)
    yield made
    assert made.faults == []


def test_the_answer_comes_first_and_a_claim_opens_by_keyboard(look: Look) -> None:
    look.open()
    assert look.page.locator("button.claim").count()
    assert not look.page.locator("#text").is_visible()
    look.press("ArrowDown", "Enter")
    assert "claim=" in look.state
    assert look.page.locator(".evidence .sentence").count() == 1
    assert len(look.rows()) == look.page.locator(".dots circle").count() > 0
    assert look.save("PNG").startswith(b"\x89PNG")
    look.click("curves of this")
    assert "tab=curves" in look.state
    assert "off=" in look.state
    look.page.go_back()
    look.page.wait_for_selector(".evidence")
    look.press("Escape")
    look.click("own units")
    assert "×" in look.page.locator(".forest").inner_text()
    assert len(look.rows()) == look.page.locator("button.claim").count()
    assert look.save("SVG").count(b"<text") > 30


def test_the_cursor_says_what_the_saved_table_says(look: Look) -> None:
    look.open("tab=curves&metric=clip/active")
    box = look.page.locator(".u-over").first.bounding_box()
    look.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 80)
    look.page.wait_for_timeout(150)
    tips = look.texts(".panel .tip:visible")
    assert len(tips) >= 2, "the same step in all panels that have it"
    first, *lines = tips[0].splitlines()
    panel, step = look.texts(".panel h3")[0], first.split()[-1]
    shown = {name: value for name, value, *_ in (line.split("\t") for line in lines if line)}
    saved = {
        row["arm"]: row["clip/active"] for row in look.rows() if (row["panel"], row["rollout_step"]) == (panel, step)
    }
    assert shown.keys() == saved.keys() != set()
    for arm, value in shown.items():
        assert float(value.replace("−", "-")) == pytest.approx(float(saved[arm]), rel=1e-3)
    look.press("ArrowRight")
    before = look.texts(".panel .tip:visible")
    look.press("ArrowRight")
    assert before != look.texts(".panel .tip:visible")


def test_zoom_legend_difference_and_the_rest_of_curves(look: Look) -> None:
    look.open("tab=curves")
    look.press("/")
    look.page.keyboard.type("clip active share")
    look.press("Enter")
    assert "metric=clip/" in look.state
    box = look.page.locator(".u-over").first.bounding_box()
    look.page.mouse.move(box["x"] + 100, box["y"] + 80)
    look.page.mouse.down()
    look.page.mouse.move(box["x"] + 250, box["y"] + 90, steps=5)
    look.page.mouse.up()
    look.page.wait_for_timeout(150)
    assert look.state.count("zoom=") == 2
    look.page.locator(".u-over").first.dblclick()
    look.page.wait_for_timeout(150)
    assert "zoom=" not in look.state
    look.press("+")
    assert look.state.count("zoom=") == 2
    look.press("-")
    legend = look.page.locator(".legend button")
    legend.nth(1).click()
    assert look.state.count("off=") == 1
    legend.nth(1).click()
    legend.nth(1).dblclick()
    assert look.state.count("off=") == legend.count() - 1
    legend.nth(1).dblclick()
    assert "off=" not in look.state
    look.click("difference")
    assert "paired by seed" in look.page.locator(".metric").inner_text()
    look.click("log y")
    assert "factor" in look.page.locator(".metric").inner_text()
    look.click("seeds")
    assert "seed" in look.rows()[0]
    assert look.save("SVG").count(b"<path") > 20
    look.choose("smooth", value="fifth")
    look.choose("x axis", label="tokens")
    look.page.locator(".panel h3 button").first.click()
    look.page.wait_for_timeout(150)
    assert look.page.locator(".panel").count() == 1
    look.press("t")
    look.page.wait_for_selector(".behind table")
    seen, state = look.page.locator("figure.curves").inner_text(), look.state
    look.click("copy link")
    assert look.page.evaluate("navigator.clipboard.readText()") == ADDRESS + state
    look.open(state[1:])
    look.page.wait_for_selector(".behind table")
    assert look.page.locator("figure.curves").inner_text() == seen
    assert look.state == state


def test_runs_sort_filter_and_open(look: Look) -> None:
    look.open("tab=runs")
    look.press("/")
    look.page.keyboard.type("no_clip")
    look.page.wait_for_timeout(150)
    assert all("no_clip" in row for row in look.texts(".runs tbody tr"))
    look.press("Escape")
    for order in (False, True):
        look.page.locator(".runs thead button", has_text="final").click()
        scores = [float(row["final"]) for row in look.rows()]
        assert scores == sorted(scores, reverse=order)
    look.page.locator(".runs tbody button").first.focus()
    look.press("Enter")
    look.page.wait_for_selector(".run .panel canvas")
    assert "run=" in look.state
    assert look.rows()
    assert look.save("PNG").startswith(b"\x89PNG")
    panels = look.page.locator(".run .panel").count()
    look.page.locator(".run .panel h3 button").first.click()
    look.page.wait_for_timeout(150)
    assert look.page.locator(".run .panel").count() == panels - 1
    look.press("Escape")
    assert "run=" not in look.state


def test_tokens_by_key_step_prompt_and_beside(look: Look) -> None:
    look.open("tab=tokens")
    look.press("ArrowLeft", "ArrowDown")
    assert "step=" in look.state
    assert "prompt=1" in look.state
    for key, name in zip("caeg", ("clip", "advantage", "entropy", "gap"), strict=True):
        look.press(key)
        assert f"colour={name}" in look.state
    look.press("r")
    look.choose("beside it", index=1)
    assert look.page.locator(".group").count() == 2
    look.page.locator(".text span").first.hover()
    assert "ratio" in look.page.locator(".tip.free").inner_text()
    assert len(look.rows()) == look.page.locator(".text span").count()
    assert look.save("PNG").startswith(b"\x89PNG")


def test_report_help_dark_and_paper(look: Look) -> None:
    look.open()
    look.press("5")
    assert look.page.locator("#text").is_visible()
    look.press("2", "?")
    assert look.page.locator("dialog").is_visible()
    look.press("Escape")
    look.page.emulate_media(color_scheme="dark")
    assert look.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(26, 26, 24)"
    look.page.emulate_media(media="print")
    assert look.page.locator("#text").is_visible()
    assert not look.page.locator("#look").is_visible()


@pytest.mark.parametrize("tab", ["answer", "curves", "runs", "tokens", "report"])
def test_a_narrow_screen_has_one_column(browser: Any, tab: str) -> None:
    look = Look(browser, width=390).open(f"tab={tab}")
    assert look.page.evaluate("document.documentElement.scrollWidth") == 390
    assert look.faults == []


def test_without_javascript_the_text_stands(browser: Any) -> None:
    look = Look(browser, java_script_enabled=False).open()
    assert look.page.locator("#text").is_visible()
    assert not look.page.locator("#look").is_visible()
