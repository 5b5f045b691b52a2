"""What the tests read from a page in the browser, and the same numbers from the study's tables."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pandas as pd
import pytest

from grpolab.report.measures import by_cell
from grpolab.report.statistics import intervals

TIPS = """() => Object.fromEntries([...document.querySelectorAll(".panel")].map((panel) => [
  panel.querySelector("h3").textContent,
  [...panel.querySelectorAll(".u-over .tip:not([hidden])")].map((tip) => ({
    head: tip.firstChild.textContent, seed: tip.lastChild.textContent,
    rows: [...tip.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent)) }))[0]]))"""
WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 90))"""
CHANGE = """async (metric) => {
  const box = document.querySelector("#look .search input"), start = performance.now();
  box.focus();
  box.value = metric;
  box.dispatchEvent(new Event("input"));
  box.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - start;
}"""


def number(text: str) -> float:
    """The number that a text of the page says."""
    return float(text.strip("±×+").replace("−", "-").replace(",", "")) if text.strip("–") else math.nan


def state(page: Any) -> dict[str, list[str]]:
    """The state in the address."""
    return parse_qs(urlsplit(page.url).fragment)


def tab(page: Any, name: str) -> None:
    page.get_by_role("group", name="parts of the page").get_by_role("button", name=name).click()


def pressed(page: Any) -> list[str]:
    """The buttons that are pressed."""
    return page.locator('#look [aria-pressed="true"]').all_inner_texts()


def control(page: Any, name: str) -> Any:
    """A list to choose from, by its label."""
    return page.locator(f'label.control:has(span:text-is("{name}")) select')


def pick_metric(page: Any, name: str) -> None:
    """Choose a metric by keys alone."""
    page.keyboard.press("/")
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    assert page.locator(".metric b").inner_text() == name


def tips(page: Any) -> dict[str, Any]:
    """What every panel says at its cursor."""
    page.wait_for_timeout(50)
    return page.evaluate(TIPS)


def heads(page: Any) -> set[str]:
    """At which places the panels' cursors say that they are."""
    return {tip["head"] for tip in tips(page).values()}


def move(page: Any, panel: str, part: float) -> None:
    """Put the mouse at a part of a panel's width."""
    box = page.locator(f'.panel:has(h3 button:text-is("{panel}")) .u-over').bounding_box()
    page.mouse.move(box["x"] + min(max(1, part * box["width"]), box["width"] - 1), box["y"] + box["height"] / 2)


def point(page: Any, panel: str, part: float) -> dict[str, Any]:
    """Put the mouse there, and return what every panel says."""
    move(page, panel, 0.5)
    move(page, panel, part)
    return tips(page)


def saved(page: Any, kind: str) -> bytes:
    """What a button writes to disk."""
    with page.expect_download() as download:
        page.get_by_role("button", name=kind, exact=True).click()
    assert download.value.suggested_filename.endswith(f".{kind.lower()}")
    return Path(download.value.path()).read_bytes()


def saved_rows(page: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(saved(page, "CSV").decode(), newline="")))


def values(study: Any, metric: str, join: str = "mean") -> pd.DataFrame:
    """A metric as the tables have it: a row for facet, arm and rollout step, a column for each seed."""
    tables = (study.updates, study.rollouts, study.evaluations, study.timings)
    table = next(table for table in tables if metric in table).replace(np.inf, np.nan)
    return table.groupby(["facet", "arm", "rollout_step", "seed"])[metric].agg(join).unstack("seed")


def of_runs(study: Any, metric: str) -> pd.Series:
    """A number of each run."""
    return study.cells.assign(of=by_cell(study, metric)).set_index(["facet", "arm", "seed"])["of"]


def agrees(said: dict[str, Any], expected: pd.DataFrame, step: int, band: Any = intervals.t_band) -> None:
    """Compare what panels say at a step with the mean of the seeds, its interval, and how many they are."""
    for facet, tip in said.items():
        seeds = expected.loc[facet].xs(step, level="rollout_step")
        bands = pd.DataFrame(dict(zip(("mean", "low", "high", "n"), band(seeds), strict=True)), index=seeds.index)
        bands = bands.dropna(subset="mean")
        assert {row[0] for row in tip["rows"]} == set(bands.index)
        for arm, mean, interval, n in tip["rows"]:
            wanted = bands.loc[arm]
            assert n == f"n {wanted['n']:.0f}"
            assert number(mean) == pytest.approx(wanted["mean"], rel=1e-3, abs=2e-5), (facet, arm)
            ends = [number(end) for end in interval.strip("[]").split(", ")]
            assert ends == pytest.approx([wanted["low"], wanted["high"]], rel=0.06, abs=1e-4), (facet, arm)
