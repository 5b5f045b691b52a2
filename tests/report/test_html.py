"""report.html and gallery.html: whole without anything else, readable by eye, ear and printer."""

from __future__ import annotations

import base64
import re
import shutil
from html.parser import HTMLParser
from io import BytesIO

import pytest
from PIL import Image
from report_results import write_study

from grpolab.paths import write_json_atomic
from grpolab.report import html, page
from grpolab.report.figures import FIGURES
from grpolab.report.load import load
from grpolab.report.style import TEXT_WIDTH
from grpolab.vocabulary import FIGURES as NAMED


class Page(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, "well nested"

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag):
        return [text for name, text in self.texts if name == tag]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"], "regime": ["healthy", "stressed"]}
    results = write_study(root, factors=factors, figures=["F1", "F2"])
    write_study(root, "num_iterations", {"mu": ["1", "2"], "task": ["addition"]}, baseline="1", figures=["F2", "F30"])
    whole = {"format": 1, "study": "both", "question": "Whole?", "figures": [], "cells": []}
    write_json_atomic(results.plan("both"), whole | {"includes": ["clip_range", "num_iterations"]})
    page.write(results, "both")
    return results


@pytest.fixture(scope="module", params=["report", "gallery"])
def either(results, request):
    return (results.output("both") / f"{request.param}.html").read_text()


@pytest.fixture(scope="module")
def report(results):
    return Page((results.output("both") / "report.html").read_text())


@pytest.fixture(scope="module")
def study_page(results):
    return Page((results.output("both") / "pages" / "clip_range.html").read_text())


def test_nothing_is_loaded_from_outside(either, study_page):
    parsed = Page(either)
    pictures = [attributes["src"][:22] for attributes in (*parsed.all("img"), *study_page.all("img"))]
    assert set(pictures) == {"data:image/png;base64,"}
    assert not {"link", "iframe", "object"} & {tag for tag, _ in parsed.elements}
    assert [attributes for attributes in parsed.all("script") if attributes] == []  # the search, which loads nothing
    assert not re.search(r"url\(|@import|http|fetch", either.replace("http-equiv", ""))
    assert "default-src 'none'" in either
    assert parsed.open == []


def test_the_screen_comes_first_and_a_verdict_has_its_colour(report):
    (style,) = report.text("style")
    titles = report.text("h2")
    assert titles == ["The studies, a page each", "Provenance", "What is missing", "Verdicts"]
    coloured = [attributes["class"] for attributes in report.all("td") if "class" in attributes]
    assert coloured == ["inconclusive", "inconclusive"]
    assert all(f"td.{word}" in style for word in html.WORDS)


def test_the_contents_lead_to_every_section(report):
    wanted = [attributes["href"] for attributes in report.all("a")]
    sections = [f"#{attributes['id']}" for attributes in report.all("h2")]
    assert wanted == [*sections, "pages/clip_range.html", "pages/num_iterations.html"]


def test_figures_stand_at_their_real_size_with_caption_and_alt_text(study_page, results):
    assert [attributes["id"] for attributes in study_page.all("figure")] == [
        "clip_range_learning_curves",
        "clip_range_clip_fraction",
    ]
    image = study_page.all("img")[0]
    assert image["style"] == f"width: {TEXT_WIDTH:.2f}in"
    whole = (results.output("both") / "figures" / "clip_range" / "clip_range_learning_curves.png").read_bytes()
    assert base64.b64decode(image["src"].partition(",")[2]) == whole
    assert image["alt"].startswith("Training reward")
    assert image["alt"].endswith("Arms of clip_range: symmetric, no_clip.")
    assert "F1." in study_page.text("strong")
    assert study_page.text("figcaption")[0].startswith(" Training reward")


def test_the_page_says_what_the_markdown_says(report, results):
    text = (results.output("both") / "report.md").read_text()
    assert text.count("\n| ") == len(report.all("tr"))  # every row of every table
    said = "".join(text for _, text in report.texts)
    open_ = "H6 is inconclusive (exploratory) in healthy"
    for sentence in ("grpolab sweep both --seeds 3", open_, "18 of 18 planned cells"):
        assert sentence in text
        assert sentence in said


def test_the_gallery_has_every_figure_and_says_why_one_is_not_drawn(results):
    text = (results.output("both") / "gallery.html").read_text()
    cards = dict(re.findall(r'<div class="card[^"]*" id="(\w+)">(.*?)</div>', text, re.DOTALL))
    assert list(cards) == list(FIGURES)
    assert all(FIGURES[name].title.split("'")[0] in card for name, card in cards.items())
    assert f"2 of {len(FIGURES)} figures" in text
    both = Page(cards["F2"])
    assert [attributes["href"] for attributes in both.all("a")][1:] == [
        "pages/clip_range.html#clip_range_clip_fraction",
        "pages/num_iterations.html#num_iterations_clip_fraction",
    ]
    with Image.open(BytesIO(base64.b64decode(both.all("img")[0]["src"].partition(",")[2]))) as thumbnail:
        assert max(thumbnail.size) == 440
    assert "Not drawn: no study of both asks for it." in cards["F3"]
    assert "num_iterations: Not drawn: needs a factor that moves staleness alone." in cards["F30"]
    assert "<img" not in cards["F30"]


def test_the_catalogue_is_that_of_the_code():
    assert list(FIGURES) == list(NAMED)


@pytest.mark.slow
def test_a_deleted_run_folder_is_said_wherever_it_lacks(tmp_path):
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"]}
    results = write_study(tmp_path, factors=factors, seeds=2, figures=["F1"])
    whole = page.write(results, "clip_range").read_text()
    (gone,) = load(results, "clip_range")[-1].cells.query("arm == 'no_clip' and seed == 1")["signature"]
    kept = tmp_path / "kept"
    shutil.move(results.run(gone), kept)
    path = page.write(results, "clip_range")
    said = "".join(text for _, text in Page(path.with_suffix(".html").read_text()).texts)
    assert "3 of 4 planned cells completed." in said
    assert "missing (planned, and not run yet): no_clip/addition seed 1" in said
    assert "1 cell missing." in said
    assert "clip_range (1 cell missing)" in (path.parent / "gallery.html").read_text()
    assert (
        '"missing": ["no_clip/addition seed 1"]'
        in (path.parent / "figures" / "clip_range_learning_curves.json").read_text()
    )
    shutil.move(kept, results.run(gone))
    assert page.write(results, "clip_range").read_text() == whole


@pytest.mark.parametrize("place", ["../secret.png", "link.png", "nobody.png"])
def test_a_picture_that_lies_elsewhere_is_not_taken_in(tmp_path, place):
    """The words of a study may come from anybody."""
    folder = tmp_path / "results"
    folder.mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    text = html.from_markdown(f"# Title\n\n![a picture]({place})\n\n![]({tmp_path}/secret.png)", folder)
    assert "data:image" not in text
    Image.new("RGB", (3, 3)).save(folder / "mine.png")
    assert "data:image" in html.from_markdown("# Title\n\n![a picture](mine.png)", folder)
