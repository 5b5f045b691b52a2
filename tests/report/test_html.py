"""report.html: whole without anything else, readable by eye, ear and printer."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest
from PIL import Image
from report_results import whole_of, write_study

from grpolab.report import html, page
from grpolab.report.style import TEXT_WIDTH


class Page(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self.texts = list[tuple[str, dict[str, str | None]]](), list[tuple[str, str]]()
        self.open: list[str] = []
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
def output(tmp_path_factory):
    """The folder of the report of a collection."""
    root = tmp_path_factory.mktemp("results")
    factors = {"clip": ["symmetric", "no_clip"], "task": ["addition"], "regime": ["healthy", "stressed"]}
    results = write_study(root, factors=factors, figures=["F1", "F2"])
    write_study(root, "num_iterations", {"mu": ["1", "2"], "task": ["addition"]}, baseline="1", figures=["F2", "F13"])
    whole_of(results, "both", ["clip_range", "num_iterations"])
    page.write(results, "both")
    return results.output("both")


@pytest.fixture(scope="module")
def report(output):
    return Page((output / "report.html").read_text())


@pytest.fixture(scope="module")
def study_page(output):
    return Page((output / "pages" / "clip_range.html").read_text())


def test_nothing_is_loaded_from_outside(report, study_page, output):
    assert {attributes["src"][:22] for attributes in study_page.all("img")} == {"data:image/png;base64,"}
    assert not {"link", "iframe", "object"} & {tag for tag, _ in report.elements}
    assert [attributes for attributes in report.all("script") if attributes] == []  # the search, which loads nothing
    for file in ("report.html", "gallery.html"):
        text = (output / file).read_text()
        assert not re.search(r"url\(|@import|http|fetch", text.replace("http-equiv", ""))
        assert "default-src 'none'" in text
    assert report.open == []


def test_the_contents_lead_to_every_section_and_a_verdict_has_its_colour(report):
    assert report.text("h2") == ["The studies, a page each", "Provenance", "What is missing", "Verdicts"]
    sections = [f"#{attributes['id']}" for attributes in report.all("h2")]
    links = [attributes["href"] for attributes in report.all("a")]
    assert links == [*sections, "pages/clip_range.html", "pages/num_iterations.html"]
    coloured = [attributes["class"] for attributes in report.all("td") if "class" in attributes]
    assert coloured == ["inconclusive", "inconclusive"]
    (style,) = report.text("style")
    assert all(f"td.{word.replace(' ', '.')}" in style for word in html.WORDS)


def test_figures_stand_at_their_real_size_with_caption_and_alt_text(study_page, output):
    names = ["clip_range_learning_curves", "clip_range_clip_fraction"]
    assert [attributes["id"] for attributes in study_page.all("figure")] == names
    image = study_page.all("img")[0]
    assert image["style"] == f"width: {TEXT_WIDTH:.2f}in"
    whole = (output / "figures" / "clip_range" / f"{names[0]}.png").read_bytes()
    assert base64.b64decode(image["src"].partition(",")[2]) == whole
    assert re.fullmatch(r"Training reward.* Arms of clip_range: symmetric, no_clip\.", image["alt"])
    assert "F1." in study_page.text("strong")
    assert study_page.text("figcaption")[0].startswith(" Training reward")


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


def test_the_gallery_leads_to_every_figure_and_says_why_one_is_not_drawn(output):
    text = (output / "gallery.html").read_text()
    cards = re.findall(r'<div class="card( absent)?"><a href="([^"]+)">(.*?)</div>', text, re.DOTALL)
    for absent, link, card in cards:
        file, _, anchor = link.partition("#")
        assert absent or f'id="{anchor}"' in (output / file).read_text()
        assert ("<img" in card) == (not absent)
    assert "F2 clip fraction" in text
    assert any(absent and "Not drawn" in card for absent, _, card in cards)
    assert "pages/clip_range.html#clip_range_clip_fraction" in {link for _, link, _ in cards}
