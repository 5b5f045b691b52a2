"""The site of docs/: navigation, anchors, code blocks, commands. test_readme has links, and commands in bare blocks."""

from __future__ import annotations

import ast
import csv
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from PIL import Image

from grpolab import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path += [str(DOCS), str(DOCS / "curves")]
build, pictures = importlib.import_module("build"), importlib.import_module("pictures")

PAGES = sorted(DOCS.glob("*.md"))
IDS = [page.name for page in PAGES]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_navigation_names_every_page_once() -> None:
    named = [file for pages in build.navigation().values() for file in pages.values()]
    assert sorted(named) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_anchors_are_there(page: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        target = page.parent / file if file else page
        assert target.suffix != ".md" or anchor in anchors(target), f"{file}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_code_blocks_parse(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)
    for text in blocks(page, "yaml"):
        yaml.safe_load(text)
    for text in blocks(page, "bash", "sh"):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    commands = re.findall("^grpolab .*", "\n".join(blocks(page, "console", "bash", "sh")), re.MULTILINE)
    for command in commands:
        assert cli.parse(shlex.split(command, comments=True)[1:]).command


def test_every_fault_and_every_committed_figure_has_its_place() -> None:
    page = (DOCS / "healthy_or_sick.md").read_text()
    assert [file.stem for file in (ROOT / "conf" / "fault").glob("*.yaml") if f"`{file.stem}`" not in page] == []
    gallery = (DOCS / "gallery.md").read_text()
    figures = [file.relative_to(ROOT).as_posix() for file in (ROOT / "results" / "figures").rglob("*.png")]
    committed = subprocess.run(["git", "ls-files", *figures], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert [name for name in committed if f"../{name}" not in gallery] == []


def test_expected_clip_fractions_are_the_doctors() -> None:
    """Else: `python docs/build.py --tables`."""
    table = build.clip_table()
    assert table in (DOCS / "clip_ranges.md").read_text()
    some = (DOCS / "why_is_my_ratio_one.md").read_text()
    shown = re.findall(r"\| ([\d. to]+)% \| [\d. to]+ \| ([\d,]+) \|\n", some)
    assert len(shown) == 6
    for clipped, runs in shown:
        assert f"| {clipped}{'%' * (clipped != '0')} | {runs.replace(',', '')} |" in table
    with (ROOT / "src" / "grpolab" / "doctor" / "expected.csv").open() as file:
        all_runs = next(row for row in csv.DictReader(file) if row["level"] == "any")
    page = (DOCS / "healthy_or_sick.md").read_text()
    assert f"90% of {int(all_runs['runs']):,} healthy runs" in page
    for name in ("entropy", "kl", "length"):
        low, high = (f"{float(all_runs[f'{name}_{end}']):.2f}".removeprefix("0") for end in ("low", "high"))
        assert f" {low} to {high} " in page


def test_each_fault_has_its_picture_and_the_page_has_the_numbers_of_its_curves() -> None:
    """Else: `python docs/curves/pictures.py`."""
    page, curves, sheets = pictures.PAGE.read_text(), pd.read_csv(pictures.CURVES), pictures.sections()
    faults = [fault for of_sheet in sheets.values() for fault in of_sheet]
    assert sorted(faults) == sorted(file.stem for file in (ROOT / "conf" / "fault").glob("*.yaml"))
    assert pictures.last_steps(curves, faults) in page
    assert (
        f"of {curves[curves['kind'] == pictures.HEALTHY]['case'].nunique()} healthy runs of the same task and seed"
        in page
    )
    for name, of_sheet in sheets.items():
        picture = DOCS / "curves" / f"{name}.png"
        assert Image.open(picture).text["seen"] == pictures.seen(of_sheet), "drawn from other curves or another table"
    assert sum(file.stat().st_size for file in (DOCS / "curves").glob("*.png")) < 400_000


def test_a_page_leads_to_copies_of_what_lies_outside_of_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PAGES", tmp_path)
    studies = build.write_pages()
    assert studies == {"ratio_level", "clip_range", "loss_form", "loss_type", "num_iterations"}
    text = (tmp_path / "axes.md").read_text()
    assert 'src="charts/loss_form.html#tab=curves&metric=eval/accuracy_expected"' in text
    assert "clip_range_clip_fraction.png" not in text, "the chart stands in the picture's place"
    assert "(files/src/grpolab/grpo/loss.py.md)" in (tmp_path / "architecture.md").read_text()
    assert "def policy_loss" in (tmp_path / "files/src/grpolab/grpo/loss.py.md").read_text()
    assert (tmp_path / "files/results/figures/verdicts.png").is_file()
    outside = [page for page in tmp_path.rglob("*.md") if "](../src" in page.read_text()]
    assert outside == []


def test_llms_txt_has_each_page_with_its_first_sentence() -> None:
    lines = build.llms_text().splitlines()
    assert lines[0] == "# GRPO Lab"
    entries = [line for line in lines if line.startswith("- [")]
    assert len(entries) == len(PAGES)
    assert [line for line in entries if not re.search(r"\.html\): \S.*\S", line)] == []
    assert build.first_sentence("# T\n\n| a |\n\n**In short.** A `b` [c](d.md). More.\n") == "A b c."


@pytest.mark.optional
@pytest.mark.timeout(1800)
def test_the_site_is_built_and_asks_nobody() -> None:
    """`make docs` installs what this needs."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("Zensical is not installed: make docs")
    assert build.main() == 0
    built = build.SITE / "html"
    assert {page.stem for page in PAGES} <= {page.stem for page in built.glob("*.html")}
    fetched = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]*rel=\"?stylesheet[^>]*https?:")
    assert [page.name for page in built.rglob("*.html") if fetched.search(page.read_text())] == []
