"""The report and its gallery as HTML files that need nothing else: pictures inside, no script, a style sheet.

Two places to fill in need no template engine.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from PIL import Image

from grpolab.report.claims import REFUTED, SUPPORTED, UNDECIDED
from grpolab.report.figures import FIGURES
from grpolab.report.style import Manifest
from grpolab.report.text import count

Picture = tuple[Manifest, Path]  # what a figure shows, and its PNG, relative to where the report lies
THUMBNAIL = 440  # pixels: sharp at the 2.2 inches that a card is wide
VERDICTS = (SUPPORTED, REFUTED, UNDECIDED)
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
# Verdicts keep their word, so colour is not all that tells them apart; blue and orange differ to every eye.
STYLE = """
:root { color-scheme: light; }
body { font: 10.5pt/1.45 "DejaVu Serif", Georgia, serif; color: #1a1a1a; background: #fff;
       max-width: 7.6in; margin: 0 auto; padding: 0 .3in 1in; }
h1, h2, h3, nav, table, figcaption { font-family: "DejaVu Sans", Helvetica, Arial, sans-serif; }
h1 { font-size: 20pt; margin: .6in 0 .1in; } h2 { font-size: 14pt; margin: .45in 0 .1in; }
nav { font-size: 9pt; border: solid #ccc; border-width: 1px 0; padding: .08in 0; columns: 3; }
nav ul { list-style: none; margin: 0; padding: 0; } a { color: #00507d; text-decoration: none; }
a:hover { text-decoration: underline; }
code { font-family: "DejaVu Sans Mono", Consolas, monospace; font-size: 85%; background: #f3f3f3; padding: 0 .2em; }
pre { background: #f3f3f3; padding: .1in; overflow-x: auto; } pre code { padding: 0; }
.wide { overflow-x: auto; margin: .12in 0; }
table { border-collapse: collapse; font-size: 7.5pt; line-height: 1.3; border: solid #333; border-width: 1px 0; }
th { text-align: left; border-bottom: 1px solid #333; vertical-align: bottom; }
th, td { padding: 2px 6px 2px 0; vertical-align: top; } tr + tr td { border-top: 1px solid #eee; }
td.supported { background: #d3e7f5; } td.refuted { background: #fbdcc9; } td.undecided { background: #ececec; }
td.supported, td.refuted, td.undecided { padding: 2px 5px; }
figure { margin: .25in 0 .3in; break-inside: avoid; } figure img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: 8pt; line-height: 1.35; margin-top: .05in; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(2.2in, 1fr)); gap: .18in; }
.card { border: 1px solid #ccc; padding: .1in; font: 8.5pt/1.35 "DejaVu Sans", Helvetica, sans-serif;
        break-inside: avoid; }
.card img { width: 100%; height: 1.3in; object-fit: contain; display: block; margin-bottom: .06in; }
.card p { margin: .03in 0; } .absent { background: #f6f6f6; color: #555; }
@page { size: A4; margin: 15mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 9.5pt; } h1 { margin-top: 0; } h2 { break-after: avoid; }
  .wide { overflow: visible; } table { font-size: 6.5pt; } tr { break-inside: avoid; }
  thead { display: table-header-group; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def page(title: str, body: str) -> str:
    """A whole page that loads nothing from anywhere, and says so to the browser."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def from_markdown(text: str, folder: Path) -> str:
    """The page of a Markdown text; the PNG files that it shows lie below `folder` and come to stand inside.

    After its title stands a table of contents. A paragraph that is one picture, and the one below it, become a figure.
    """
    tokens = _MARKDOWN.parse(text)
    titles = _name_headings(tokens)
    _mark_tables(tokens)
    _frame_figures(tokens, folder)
    head = next((n + 1 for n, token in enumerate(tokens) if token.type == "heading_close"), 0)
    links = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in titles[1:])
    parts = (_MARKDOWN.renderer.render(part, _MARKDOWN.options, {}) for part in (tokens[:head], tokens[head:]))
    title = titles[0][1] if titles else ""
    return page(title, f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'.join(parts))


def figure_name(path: Path) -> str:
    """Where a figure stands in the report: `figures/clip_range/F1.png` at #clip_range-F1."""
    return "-".join(path.with_suffix("").parts[1:])


def embed(file: Path, width: int | None = None) -> tuple[str, float]:
    """A PNG file as a data URI, made smaller to `width` pixels where given; and its width on paper in inches."""
    content = file.read_bytes()
    with Image.open(BytesIO(content)) as image:
        inches = image.width / image.info.get("dpi", (96, 96))[0]
        if width is not None:
            small = image.convert("RGB")
            small.thumbnail((width, width))
            buffer = BytesIO()
            small.quantize(64, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
            content = buffer.getvalue()
    return f"data:image/png;base64,{base64.b64encode(content).decode()}", inches


def _name_headings(tokens: list[Token]) -> list[tuple[str, str]]:
    """Give every heading an id; (id, title) of each."""
    titles: list[tuple[str, str]] = []
    for heading, text in pairwise(tokens):
        if heading.type == "heading_open":
            name = "-".join(text.content.lower().split())
            heading.attrSet("id", name)
            titles.append((name, text.content))
    return titles


def _mark_tables(tokens: list[Token]) -> None:
    """Let wide tables scroll, and give a cell that is a verdict its class."""
    for place, token in enumerate(tokens):
        if token.type == "td_open" and (word := tokens[place + 1].content.strip("*")) in VERDICTS:
            token.attrSet("class", word)
    for place in reversed([n for n, token in enumerate(tokens) if token.type in ("table_open", "table_close")]):
        opens = tokens[place].type == "table_open"
        block = Token("html_block", "", 0, content='<div class="wide">\n' if opens else "</div>\n")
        tokens.insert(place if opens else place + 1, block)


def _frame_figures(tokens: list[Token], folder: Path) -> None:
    """Make <figure> of each paragraph that is one picture, and <figcaption> of the paragraph below it."""
    pictures = [n for n, token in enumerate(tokens) if _is_picture(token)]
    for place in reversed(pictures):
        (image,) = tokens[place].children or []
        path = Path(str(image.attrs["src"]))
        source, inches = embed(folder / path)
        image.attrs |= {"src": source, "style": f"width: {inches:.2f}in"}
        opening, closing = tokens[place - 1], tokens[place + 1]
        opening.tag, closing.tag = "figure", "figure"
        opening.attrSet("id", figure_name(path))
        if [token.type for token in tokens[place + 2 : place + 3]] == ["paragraph_open"]:
            tokens[place + 2].tag = tokens[place + 4].tag = "figcaption"
            tokens[place + 1 : place + 5] = [*tokens[place + 2 : place + 5], closing]


def _is_picture(token: Token) -> bool:
    return token.type == "inline" and [child.type for child in token.children or []] == ["image"]


# ----------------------------------------------------------------------------------------------------------------------
# The gallery: every figure of the catalogue as a thumbnail, and of those that are not drawn the reason.


def gallery(name: str, pictures: Sequence[Picture], folder: Path, report: str) -> str:
    """The page of the study `name`; `pictures` lie below `folder`, and `report` is the file beside them."""
    cards = []
    for figure, (_, title) in FIGURES.items():
        drawn = [picture for picture in pictures if picture[0].figure == figure]
        words = f"<b>{figure}</b> {escape(title)}."
        if drawn:
            cards.append(_card(figure, words, drawn, folder, report))
        else:
            reason = f"Not drawn: no study of {escape(name)} asks for it."
            cards.append(f'<div class="card absent" id="{figure}"><p>{words}</p><p>{reason}</p></div>')
    shown = len({manifest.figure for manifest, _ in pictures})
    head = f"<h1>Figures of {escape(name)}</h1>\n<p>{shown} of {len(FIGURES)} figures of the catalogue are drawn"
    links = f'in {count(len(pictures), "picture")}; they stand at full size in <a href="{report}">{report}</a>.</p>'
    return page(f"Figures of {name}", f'{head}, {links}\n<div class="cards">\n' + "\n".join(cards) + "\n</div>")


def _card(figure: str, words: str, drawn: Sequence[Picture], folder: Path, report: str) -> str:
    """A figure that is drawn: the first study's picture, and links to those of all studies that draw it."""
    first, path = drawn[0]
    source, _ = embed(folder / path, THUMBNAIL)
    image = f'<a href="{report}#{figure_name(path)}"><img alt="{escape(first.alt)}" src="{source}"></a>'
    links = []
    for manifest, place in drawn:
        absent = len(manifest.missing) + len(manifest.failed)
        gaps = f" ({count(absent, 'cell')} missing)" if absent else ""
        links.append(f'<a href="{report}#{figure_name(place)}">{escape(manifest.study)}{gaps}</a>')
    return f'<div class="card" id="{figure}">{image}<p>{words}</p><p>{", ".join(links)}</p></div>'
