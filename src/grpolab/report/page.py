"""The report of a study, and the gallery of its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from grpolab.paths import REFERENCE_STUDY, Results, write_text_atomic
from grpolab.report import html
from grpolab.report.claims import UNDECIDED, Claim, decide
from grpolab.report.figures import FIGURES
from grpolab.report.figures import draw as draw_figure
from grpolab.report.load import Study, load
from grpolab.report.provenance import missing, provenance
from grpolab.report.regimes import unmet
from grpolab.report.sentences import findings
from grpolab.report.style import Manifest, save
from grpolab.report.tables import Table, claims_table, tables
from grpolab.report.text import begun, count, markdown_table
from grpolab.report.tuning import page as tuning

# ----------------------------------------------------------------------------------------------------------------------
# The gallery: every figure of the catalogue as a thumbnail, and of those that are not drawn the reason.


THUMBNAIL = 440  # pixels: sharp at the 2.2 inches that a card is wide


def gallery(parts: Sequence[Study], drawn: Sequence[tuple[Manifest, Path]], folder: Path, report: str) -> str:
    """The page; `drawn` are the figures of `parts` with their PNG files, relative to `folder`, where `report` lies."""
    name = parts[-1].name
    cards = []
    for figure, (_, line) in FIGURES.items():
        own = [(manifest, path) for manifest, path in drawn if manifest.figure == figure]
        cards.append(_card(figure, line, own, folder, report) if own else _absent(figure, line, name))
    shown = len({manifest.figure for manifest, _ in drawn})
    head = f"<h1>Figures of {escape(name)}</h1>\n<p>{shown} of {len(FIGURES)} figures of the catalogue are drawn"
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
    words, reason = f"<b>{figure}</b> {escape(line)}.", f"no study of {name} asks for it"
    return f'<div class="card absent" id="{figure}"><p>{words}</p><p>Not drawn: {escape(reason)}.</p></div>'


# ----------------------------------------------------------------------------------------------------------------------
# The report of a study: claims first, then what its runs show, figures, tables, provenance, what was not decided.
#
# Markdown is its source; the HTML page is that text with the pictures inside.


# Said of every study, once.
BRACKETS = (
    "Brackets: 95% intervals, not corrected. Means over seeds: Student's t; of shares Wilson's at the effective sample"
    " size, m(1 - m)/se² for a mean m with standard error se, and Student's t, so that no share leaves [0, 1]."
    " Differences of two arms are paired by seed, and factors (in logarithms) too. Rates of runs: Wilson's, unpaired."
)
COMMITTED = (
    f"*This is the report of the study `{REFERENCE_STUDY}`, whose outcome is committed with the code. Reports of other"
    " studies, that of `make sweep` too, stand in `studies/<study>/`.*"
)
Progress = Callable[[str], None]
Section = Callable[[Sequence[Study]], str]  # Markdown about some studies; empty where there is nothing to say
Drawn = tuple[Manifest, Path]  # what a figure shows, and its PNG


@dataclass(frozen=True)
class Part:
    """One study with what was made of it; paths are relative to where the report lies."""

    study: Study
    claims: list[Claim]
    drawn: list[Drawn]
    tables: list[Table]
    tuning: tuning.Section


def write(
    results: Results,
    study: str,
    progress: Progress = lambda line: None,
    diagnosis: Section = lambda studies: "",
) -> Path:
    """Draw every figure, write every table and the report of a study; the path of report.md.

    Beside it stand report.html and gallery.html. `progress` is told what is being done; `diagnosis` writes the section
    about runs in which something is wrong (`doctor.page.section`). Raises RequestError when the study has not been
    planned, or mixes runs that must not be compared.
    """
    output = results.output(study)
    parts = _make(results, study, output, progress)
    progress("report")
    path, text = output / "report.md", _text(parts, diagnosis)
    studies, drawn = [part.study for part in parts], [one for part in parts for one in part.drawn]
    write_text_atomic(path.with_suffix(".html"), html.from_markdown(text, output))
    write_text_atomic(output / "gallery.html", gallery(studies, drawn, output, "report.html"))
    write_text_atomic(path, text)  # last: it says that all is drawn
    return path


def draw(results: Results, study: str, progress: Progress = lambda line: None) -> list[Path]:
    """Draw the figures of a study and write its tables; the paths of the PNG files.

    Beside each stand its PDF and its manifest. Raises RequestError as `write`.
    """
    output = results.output(study)
    parts = _make(results, study, output, progress)
    return [
        *(output / path for part in parts for _, path in part.drawn),
        *(path for part in parts for path in part.tuning.pictures),
    ]


def _make(results: Results, name: str, output: Path, progress: Progress) -> list[Part]:
    """Figures, tables and claims, study by study, so that what one study needs is computed once."""
    studies = load(results, name)
    wanted, parts = sum(len(study.plan["figures"]) for study in studies), list[Part]()
    for study in studies:
        place = Path() if study is studies[-1] else Path(study.name)  # included studies have folders of their own
        drawn: list[Drawn] = []
        for figure in study.plan["figures"]:
            done = sum(len(part.drawn) for part in parts) + len(drawn) + 1
            progress(f"figure {done}/{wanted}: {study.name} {figure}")
            drawn.append(_draw(study, figure, output, Path("figures") / place))
        made = tables(study) if len(study.cells) else []
        for table in made:
            table.write(output / "tables" / place)
        parts.append(Part(study, decide(study), drawn, made, tuning.section(study, output, place)))
    if claims := [claim for part in parts for claim in part.claims]:
        claims_table(claims).write(output / "tables")
    return parts


def _draw(study: Study, figure: str, output: Path, folder: Path) -> Drawn:
    picture, manifest = draw_figure(study, figure)
    path = folder / f"{figure}.png"
    save(picture, (output / path).with_suffix(""))
    manifest.write((output / path).with_suffix(".json"))
    return manifest, path


def _text(parts: Sequence[Part], diagnosis: Section) -> str:
    """report.md."""
    studies, claims = [part.study for part in parts], [claim for part in parts for claim in part.claims]
    sections = [
        f"# {studies[-1].name}\n\n{studies[-1].plan['question']}",
        *([COMMITTED] if studies[-1].name == REFERENCE_STUDY else []),
        preconditions(studies),
        _claims(claims),
        *(_study(part, alone=len(parts) == 1) for part in parts),
        *(part.tuning.text for part in parts),
        diagnosis(studies),
        provenance(studies),
        _undecided(claims),
        missing(studies),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def preconditions(studies: Sequence[Study]) -> str:
    """What stands at the top of a report whose studies fail what they presuppose; empty where they do not."""
    sentences = unmet(studies)
    if not sentences:
        return ""
    failed = f"**{count(len(sentences), 'precondition')} not met**"
    head = f"{failed} (`grpolab regimes` explains them; with more seeds they may be):"
    return f"{head}\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return ""
    table = claims_table(claims)
    shown = table.shown.assign(verdict=[f"**{claim.verdict}**" for claim in claims])
    tally = pd.Series([claim.verdict for claim in claims]).value_counts()
    sums = ", ".join(f"{n} {verdict}" for verdict, n in sorted(tally.items()))
    sentences = "\n".join(f"- {claim.sentence}" for claim in claims if claim.verdict != UNDECIDED)
    blocks = ["## Claims", f"{table.caption} {sums[:1].upper()}{sums[1:]}.", markdown_table(shown), sentences]
    return "\n\n".join(filter(None, blocks))


def _undecided(claims: Sequence[Claim]) -> str:
    """What stays open, each with its reason."""
    sentences = [f"- {claim.study} {claim.sentence}" for claim in claims if claim.verdict == UNDECIDED]
    if not sentences:
        return ""
    head = f"{len(sentences)} of {count(len(claims), 'claim')}. Undecided is an answer: each says what would decide it."
    return f"## What was not decided\n\n{head}\n\n" + "\n".join(sentences)


def _study(part: Part, alone: bool) -> str:
    study = part.study
    title = "What the runs show" if alone else "Analytic figures" if study.cells.empty else study.name
    blocks = [f"## {title}"] if alone or study.cells.empty else [f"## {title}\n\n{study.plan['question']}"]
    if len(study.cells):
        blocks.append("\n".join(f"- {sentence}" for sentence in findings(study)))
        blocks.append(BRACKETS)
    for manifest, path in part.drawn:
        seeds = f" Seeds: {', '.join(map(str, manifest.seeds))}." if manifest.seeds else ""
        absent = len(manifest.missing) + len(manifest.failed)
        gaps = f" **{count(absent, 'cell')} missing.**" if absent else ""
        note = f"**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}.{seeds}{gaps}"
        blocks.append(f"![{_plain(manifest.alt)}]({path})\n\n{note}")
    blocks += [f"{table.caption}\n\n{markdown_table(table.shown)}" for table in part.tables]
    return "\n\n".join(blocks) if len(blocks) > 1 else ""


def _plain(text: str) -> str:
    """Without what Markdown would read as its own inside a picture's alt text."""
    return "".join(letter for letter in text if letter not in "`[]*\\")
