"""The gallery: every figure of the catalogue as a thumbnail, and of those that are not drawn the reason."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from grpolab.report import html
from grpolab.report.catalogue import CATALOGUE
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest
from grpolab.report.text import count
from grpolab.vocabulary import FIGURES

THUMBNAIL = 440  # pixels: sharp at the 2.2 inches that a card is wide


def gallery(parts: Sequence[Study], drawn: Sequence[tuple[Manifest, Path]], folder: Path, report: str) -> str:
    """The page; `drawn` are the figures of `parts` with their PNG files, relative to `folder`, where `report` lies."""
    name = parts[-1].name
    cards = []
    for figure, line in CATALOGUE.items():
        own = [(manifest, path) for manifest, path in drawn if manifest.figure == figure]
        cards.append(_card(figure, line, own, folder, report) if own else _absent(figure, line, name))
    shown = len({manifest.figure for manifest, _ in drawn})
    head = f"<h1>Figures of {escape(name)}</h1>\n<p>{shown} of {len(CATALOGUE)} figures of the catalogue are drawn"
    links = f'in {count(len(drawn), "picture")}; they stand at full size in <a href="{report}">{report}</a>.</p>'
    return html.page(f"Figures of {name}", f'{head}, {links}\n<div class="cards">\n' + "\n".join(cards) + "\n</div>")


def _card(figure: str, line: str, own: Sequence[tuple[Manifest, Path]], folder: Path, report: str) -> str:
    """A figure that is drawn: the first study's picture, and links to those of all studies that draw it."""
    first, path = own[0]
    source, _ = html.embed(folder / path, THUMBNAIL)
    links = ", ".join(f'<a href="{report}#{html.figure_name(place)}">{_what(made)}</a>' for made, place in own)
    image = f'<a href="{report}#{html.figure_name(path)}"><img alt="{escape(first.alt)}" src="{source}"></a>'
    return f'<div class="card" id="{figure}">{image}<p><b>{figure}</b> {escape(line)}.</p><p>{links}</p></div>'


def _what(made: Manifest) -> str:
    """The study; of a picture that lacks cells, how many."""
    absent = len(made.missing) + len(made.failed)
    return escape(made.study) + (f" ({count(absent, 'cell')} missing)" if absent else "")


def _absent(figure: str, line: str, name: str) -> str:
    reason = f"no study of {name} asks for it" if figure in FIGURES else "nothing draws it yet"
    words = f"<b>{figure}</b> {escape(line)}."
    return f'<div class="card absent" id="{figure}"><p>{words}</p><p>Not drawn: {escape(reason)}.</p></div>'
