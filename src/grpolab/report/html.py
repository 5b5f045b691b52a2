"""The report as an HTML file that needs nothing else: pictures, style and a search of long tables are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markdown_it.token import Token

from grpolab.report.claims import FAILS, HOLDS, VERDICTS
from grpolab.report.figures import FIGURES
from grpolab.report.style import Manifest

Picture = tuple[Manifest, Path]  # a figure's manifest, and its PNG relative to the report
THUMBNAIL = 440  # pixels: sharp at the 2.2 inches that a card is wide
WORDS = (*VERDICTS, HOLDS, FAILS)  # coloured where they are a cell
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_MARKDOWN.add_render_rule("table_open", lambda *_: '<div class="wide">\n<table>\n')  # wide tables scroll
_MARKDOWN.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
_LOADER = FileSystemLoader(Path(__file__).parent / "templates")
_TEMPLATES = Environment(
    loader=_LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)


def from_markdown(text: str, folder: Path, root: Path | None = None, application: str = "") -> str:
    """Return the page of a Markdown text in `folder`; its PNG files, which lie below it or `root`, stand inside.

    After its title stands a table of contents. A paragraph that is one picture, and the one below it, become a figure.
    `application`: elements that come last, the page's numbers and the program that shows them.
    """
    tokens = _MARKDOWN.parse(text)
    sections: list[tuple[str, str]] = []  # the anchor and title of each heading
    for token, text_of in pairwise(tokens):
        if token.type == "heading_open":
            sections.append(("-".join(text_of.content.lower().split()), text_of.content))
            token.attrSet("id", sections[-1][0])
        elif token.type == "td_open" and (word := text_of.content.strip("*")) in WORDS:
            token.attrSet("class", word)
    for link in (child for token in tokens for child in token.children or [] if child.type == "link_open"):
        link.attrs["href"] = re.sub(r"\.md$", ".html", str(link.attrs["href"]))  # a page beside it
    _frame_figures(tokens, folder, root or folder)
    head = next((n + 1 for n, token in enumerate(tokens) if token.type == "heading_close"), 0)
    opening, rest = (_MARKDOWN.renderer.render(part, _MARKDOWN.options, {}) for part in (tokens[:head], tokens[head:]))
    return _TEMPLATES.get_template("report.html").render(
        title=sections[0][1] if sections else "",
        opening=opening,
        sections=sections[1:],
        rest=rest,
        application=application,
    )


def gallery(name: str, pictures: Sequence[Picture], folder: Path) -> str:
    """Return the page with every figure of a study as a thumbnail that leads to it in its report, or why it lacks one.

    `pictures` lie below `folder`, beside report.html and the pages of the studies that a collection includes.
    """
    cards = [
        {
            "manifest": manifest,
            "words": f"{manifest.figure} {FIGURES[manifest.figure].name}".replace("_", " "),
            "image": _embed(folder / path, THUMBNAIL)[0] if manifest.numbers else None,
            "link": f"{'report' if manifest.study == name else f'pages/{manifest.study}'}.html#{path.stem}",
        }
        for manifest, path in pictures
    ]
    return _TEMPLATES.get_template("gallery.html").render(title=f"Figures of {name}", cards=cards)


def _embed(file: Path, width: int | None = None) -> tuple[str, float]:
    """Return a PNG file as a data URI, made smaller to `width` pixels if given, and its width on paper in inches."""
    from PIL import Image

    content = file.read_bytes()
    with Image.open(BytesIO(content)) as image:
        inches = image.width / image.info.get("dpi", (96, 96))[0]
        if width is not None:
            small, buffer = image.convert("RGB"), BytesIO()
            small.thumbnail((width, width))
            small.quantize(64, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
            content = buffer.getvalue()
    return f"data:image/png;base64,{base64.b64encode(content).decode()}", inches


def _frame_figures(tokens: list[Token], folder: Path, root: Path) -> None:
    """Make <figure> of each paragraph that is one picture, and <figcaption> of the paragraph below it."""
    for place in reversed(range(len(tokens))):
        if [child.type for child in tokens[place].children or []] != ["image"]:
            continue
        (image,) = tokens[place].children or []
        path = Path(str(image.attrs["src"]))
        if not (folder / path).resolve().is_relative_to(root.resolve()) or not (folder / path).is_file():
            image.attrs["src"] = ""  # a study's words may name any file; only pictures of the report are shown
            continue
        source, inches = _embed(folder / path)
        image.attrs |= {"src": source, "style": f"width: {inches:.2f}in"}
        opening, closing = tokens[place - 1], tokens[place + 1]
        opening.tag, closing.tag = "figure", "figure"
        opening.attrSet("id", path.stem)  # where the gallery leads to
        if place + 2 < len(tokens) and tokens[place + 2].type == "paragraph_open":
            tokens[place + 2].tag = tokens[place + 4].tag = "figcaption"
            tokens[place + 1 : place + 5] = [*tokens[place + 2 : place + 5], closing]
