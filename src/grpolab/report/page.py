"""The report of a study: one screen with the answers, what its runs show, provenance, and an appendix of all verdicts.

A collection's studies have a page each, in pages/. Markdown is the source; an HTML page is that text with the pictures
inside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd

from grpolab import RESULTS_VERSION
from grpolab.paths import FINDINGS, REFERENCE_STUDY, SWEEP_STUDY, Results, write_text_atomic
from grpolab.report import brief, figures, how_many_seeds, html, provenance, rates, screen, tables
from grpolab.report.claims import CHECK, DESCRIBED, Claim, decide, decide_elsewhere, note_on_labels
from grpolab.report.html import Picture
from grpolab.report.load import StudyRuns, load
from grpolab.report.sentences import find_unmet, findings
from grpolab.report.style import Manifest, cell_names, save
from grpolab.report.text import begun, bullets, count, listing, spans
from grpolab.vocabulary import COMPLETED, DAMAGED, OUTCOMES

# A note below the sentences of every study.
BRACKETS = (
    "Brackets: 95% intervals, not corrected. Means over seeds: Student's t; of shares Wilson's at the effective sample"
    " size, m(1 - m)/se² for a mean m with standard error se, and Student's t, so that no share leaves [0, 1]."
    " Differences of two arms are {differences}. Rates of runs: Wilson's, unpaired. They describe; {decided}."
)
COMMITTED = (
    f"*This is the report of the study `{REFERENCE_STUDY}`, from the committed outcome (`results/reference/`). Reports"
    " of other studies stand in `studies/<study>/`, that of `make sweep`, which runs the study named"
    f" `{SWEEP_STUDY}`, too.*"
)
MANY_FIGURES, MOST_WORKERS = 12, 4  # a process takes some seconds to begin
Progress = Callable[[str], None]
Section = Callable[[Sequence[StudyRuns]], str]  # writes Markdown about some studies, or nothing
Application = Callable[[Sequence[StudyRuns], Sequence[Claim]], str]  # HTML elements that make the page interactive


@dataclass(frozen=True)
class StudyPage:
    """One study with its figures and tables; paths are relative to the report's folder."""

    study: StudyRuns
    pictures: list[Picture]
    tables: list[tables.Table]
    tuning: Any = None  # `tuning.Section`; None of runs that others made


def write(
    results: Results,
    study: str,
    progress: Progress = lambda line: None,
    diagnosis: Section = lambda studies: "",
    application: Application = lambda studies, claims: "",
) -> Path:
    """Draw every figure, write every table and the report of a study; return the path of report.md.

    Beside it stand report.html and gallery.html. `progress` gets a line for each step, and at the end the screen that
    the report begins with; `diagnosis` writes the section about runs in which something is wrong, `application` what
    report.html holds besides the text. Raises RequestError when the study has not been planned, or mixes runs that must
    not be compared.
    """
    output = results.output(study)
    state = screen.state_of(results, study)
    parts, claims = make_parts(results, study, output, progress, shown=True)
    progress("report")
    studies = [part.study for part in parts]
    first = brief.screen(studies, claims, decide_elsewhere(results, studies))
    screen.keep(results, study, state, studies, first)
    forest = import_module("grpolab.report.figures.comparison").write_verdicts(studies[-1], claims, output)
    *included, whole = parts
    links = [f"[{part.study.name}](pages/{part.study.name}.md): {part.study.plan['question']}" for part in included]
    for part in included:
        _write_page(part, [claim for claim in claims if claim.study == part.study.name], output)
    pictures = [picture for part in parts for picture in part.pictures]
    write_text_atomic(output / "gallery.html", html.gallery(study, pictures, output))
    sections = [
        f"# {study}\n\n{whole.study.plan['question']}",
        COMMITTED if study == REFERENCE_STUDY else "",
        _other_version(studies),
        _findings(results, output, progress) if study == REFERENCE_STUDY else "",
        first,
        _picture(*forest) if forest else "",
        _preconditions(studies),
        _write_runs(whole),
        _section("The studies, a page each", bullets(links)),
        import_module("grpolab.report.tuning").join_sections([part.tuning for part in parts]),
        diagnosis(studies),
        *provenance.section(studies),
        missing(studies),
        *_verdicts(claims, output),
        given_up(studies),
    ]
    path = _write_report(sections, output, application(studies, claims))
    progress(f"\n{brief.strip_markdown(first)}\n")
    return path


def write_found(
    study: StudyRuns, output: Path, runs: str, lacks: Sequence[str], diagnosis: str, application: str
) -> Path:
    """Write the report of runs that others made, report.md and report.html in `output`; return the path of report.md.

    In Markdown, `runs` names them, `lacks` what their logs do not hold, `diagnosis` what is wrong there. Tables are in
    LaTeX too if the plan has figures.
    """
    pictures = _draw_figures([study], output, lambda line: None, shown=False)[study.name]
    written = [kept for table in tables.tables(study) if (kept := table.without_empty_columns)]
    for table in written:
        table.write(output / "tables", in_latex=bool(study.plan["figures"]))
    sections = [
        f"# {study.name}\n\n{study.plan['question']}",
        runs,
        f"## What the logs lack\n\n{bullets(lacks)}",
        _write_runs(StudyPage(study, pictures, written)),
        diagnosis,
    ]
    return _write_report(sections, output, application)


def _write_report(sections: Iterable[str], output: Path, application: str) -> Path:
    """Write report.html, and report.md last, because its presence means that everything is drawn."""
    text = _blocks(sections) + "\n"
    write_text_atomic(output / "report.html", html.from_markdown(text, output, application=application))
    write_text_atomic(output / "report.md", text)
    return output / "report.md"


def draw(results: Results, study: str, single_seeds: bool = False) -> list[Path]:
    """Draw the figures of a study and write its tables; return the paths of the PNG files.

    Beside each stand its PDF and its manifest. `single_seeds`: with a thin line for each seed. Raises RequestError as
    `write`.
    """
    output = results.output(study)
    parts, _ = make_parts(results, study, output, lambda line: None, single_seeds)
    pictures = [output / path for part in parts for manifest, path in part.pictures if manifest.numbers]
    return [*pictures, *(path for part in parts for path in part.tuning.pictures)]


def make_parts(
    results: Results, name: str, output: Path, progress: Progress, single_seeds: bool = False, shown: bool = False
) -> tuple[list[StudyPage], list[Claim]]:
    """Make figures and tables, study by study, and decide every claim.

    `shown`: draw only the figures that the collection chooses, if it chooses any.
    """
    studies, claims = _load(results, name, single_seeds)
    pictures, parts = _draw_figures(studies, output, progress, shown), list[StudyPage]()
    for study in studies:
        place = _place(study, studies)
        makers = (tables, how_many_seeds, rates) if len(study.cells) else ()
        written = [table for maker in makers for table in maker.tables(study)]
        for table in written:
            table.write(output / "tables" / place)
        # Loaded by name: it draws with libraries of its own.
        tuning = import_module("grpolab.report.tuning").make_section(study, output, place)
        parts.append(StudyPage(study, pictures[study.name], written, tuning))
    return parts, claims


def _load(results: Results, name: str, single_seeds: bool = False) -> tuple[list[StudyRuns], list[Claim]]:
    """Load a study and decide its claims; its figures will say how many of them are confirmatory."""
    loaded = load(results, name)
    claims = decide(loaded)
    notes = [note_on_labels(study, claims) for study in loaded]
    pairs = zip(loaded, notes, strict=True)
    return [replace(study, single_seeds=single_seeds, note_on_labels=note) for study, note in pairs], claims


def _place(study: StudyRuns, studies: Sequence[StudyRuns]) -> Path:
    """Return the folder of a study's figures: included studies have folders of their own."""
    return Path() if study is studies[-1] else Path(study.name)


_STUDIES: dict[str, StudyRuns] = {}  # the studies to draw, set in every process that draws


def _keep_studies(studies: Sequence[StudyRuns]) -> None:
    _STUDIES.update({study.name: study for study in studies})


def _draw_figures(
    studies: Sequence[StudyRuns], output: Path, progress: Progress, shown: bool
) -> dict[str, list[Picture]]:
    """Draw and write every figure of each study; if there are many, with several processes.

    The processes are spawned and given the studies, because a fork would copy locks that this one's threads hold.
    """
    only = studies[-1].plan.get("shown") if shown else None
    names, folder = figures.FIGURES, Path("figures")
    wanted = [
        (study.name, figure, folder / _place(study, studies) / f"{study.name}_{names[figure].name}.png")
        for study in studies
        for figure in study.plan["figures"]
        if not only or study is studies[-1] or f"{study.name}.{figure}" in only
    ]
    _keep_studies(studies)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = min(cores, MOST_WORKERS) if len(wanted) >= MANY_FIGURES else 1
    processes = ProcessPoolExecutor(workers, get_context("spawn"), _keep_studies, (studies,)) if workers > 1 else None
    drawn: dict[str, list[Picture]] = {study.name: [] for study in studies}
    with _safe_path(), processes or nullcontext() as pool:
        futures = [
            pool.submit(_draw_one, name, figure, output / path) if pool else None for name, figure, path in wanted
        ]
        for number, (future, (name, figure, path)) in enumerate(zip(futures, wanted, strict=True), start=1):
            progress(f"figure {number}/{len(wanted)}: {name} {figure}")
            manifest = future.result() if future else _draw_one(name, figure, output / path)
            drawn[name].append((manifest, path))
    return drawn


@contextmanager
def _safe_path() -> Iterator[None]:
    """Give processes that Python itself starts the -P of `paths.PYTHON`."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]


def _draw_one(study: str, figure: str, path: Path) -> Manifest:
    """Draw a figure and write it as PNG, PDF and manifest; write no picture if the study lacks what it needs."""
    picture, manifest = figures.draw(_STUDIES[study], figure)
    if manifest.numbers:
        save(picture, path.with_suffix(""))
        manifest.write(path.with_suffix(".json"))
    else:  # remove an outdated picture
        for end in (".png", ".pdf", ".json"):
            path.with_suffix(end).unlink(missing_ok=True)
    return manifest


HOW_TO_READ = (
    "A verdict is `supported`, `opposite` (the reverse of what was asked), `negligible` (smaller than the margin) or"
    " `inconclusive`. The margin is the smallest difference that matters, fixed before the runs: a number of points,"
    " or a share of what the baseline gains; some questions have none. An item gives the accuracy of the first arm"
    " and of the second, at the end, with the start of both; then their difference with the interval of the decision."
    " A repetition asks again what an earlier study had asked."
)


def _findings(results: Results, output: Path, progress: Progress) -> str:
    """Write of each study in the collection of findings its title, the verdicts that are chosen there, and its figure.

    Empty if the collection is neither planned here nor committed.
    """
    if not any(plan(FINDINGS).is_file() for plan in (results.plan, results.committed_plan)):
        return ""
    studies, claims = _load(results, FINDINGS)
    drawn, blocks = _draw_figures(studies, output, progress, shown=True), list[str]()
    for study in studies[:-1]:
        verdicts = brief.finding(study, claims, studies[-1].plan.get("said", ()))
        blocks += [f"### {study.plan.get('title') or study.name}", f"*{study.plan['question']}*", bullets(verdicts)]
        blocks += [_picture(manifest, path) for manifest, path in drawn[study.name] if manifest.numbers]
    return _section("What practitioners ask", HOW_TO_READ, *blocks, "## Published claims") if blocks else ""


def _blocks(blocks: Iterable[str]) -> str:
    """Join the blocks that are not empty, with an empty line between them."""
    return "\n\n".join(filter(None, blocks))


def _section(title: str, *blocks: str) -> str:
    """Return a section with its title; empty if all of its blocks are empty."""
    return _blocks([f"## {title}", *blocks]) if any(blocks) else ""


def _other_version(studies: Sequence[StudyRuns]) -> str:
    """Return a warning if this version of the program would compute other numbers than the runs have, else ''."""
    done = [study.done for study in studies if "results_version" in study.done]  # absent before the first run
    versions = sorted({int(version) for runs in done for version in runs["results_version"].dropna()})
    if versions in ([], [RESULTS_VERSION]):
        return ""
    return (
        f"**These runs are of results_version {listing([*map(str, versions)])}, this program is of {RESULTS_VERSION}:**"
        " what it trains has other numbers and is never drawn together with these; CHANGELOG.md says what changed."
    )


def _preconditions(studies: Sequence[StudyRuns]) -> str:
    """Return a warning if studies fail their preconditions, else ''."""
    sentences = find_unmet(studies)
    head = f"**{count(len(sentences), 'precondition')} not met** (docs/regimes.md explains them; with more seeds they"
    return f"{head} may be):\n\n{bullets(sentences)}" if sentences else ""


def _verdicts(claims: Sequence[Claim], output: Path | None = None) -> Iterator[str]:
    """Write every claim that was tested with its sentence, the checks, and what is only described; as tables too."""
    tested = [claim for claim in claims if claim.is_finding]
    sentences = bullets(f"{claim.study} {claim.sentence}" for claim in tested)
    for title, of_kind, table_of, below in (
        ("Verdicts", tested, tables.verdicts, sentences),
        ("Checks", [claim for claim in claims if claim.label == CHECK], tables.checks, ""),
        ("Described", [claim for claim in claims if claim.verdict == DESCRIBED], tables.described, ""),
    ):
        if of_kind:
            table = table_of(of_kind)
            if output:
                table.write(output / "tables")
            yield _section(title, table.markdown, below, as_registered(of_kind))


def as_registered(claims: Sequence[Claim]) -> str:
    """List the full registered text of claims that the page shortens; empty if there are none."""
    words = bullets(f"{claim.study} {claim.id}: {claim.registered}" for claim in claims if claim.registered)
    head = "As registered (above stands what was tested, which is less; the registered words decide nothing more):"
    return f"{head}\n\n{words}" if words else ""


def given_up(studies: Sequence[StudyRuns]) -> str:
    """List the registrations that were given up: their seeds, the reason, and what their runs said."""
    lines = [
        f"{study.name}, registered {line['withdraws']} with seeds {spans(line['seeds'])}"
        f" ({', '.join(line['hypotheses'])}): {line['reason']} What its runs said: {line['said']}"
        for study in studies
        for line in study.plan.get("withdrawn", [])
    ]
    head = "A question that was registered before decides at half of its error, each time again."
    return _section("Registrations that were given up", head, bullets(lines)) if lines else ""


def _picture(manifest: Manifest, path: Path, seeds: str = "") -> str:
    """Write a picture and its caption, as two paragraphs."""
    alt = "".join(letter for letter in manifest.alt if letter not in "`[]*\\")  # Markdown reads these
    absent = len(manifest.missing) + len(manifest.failed)
    gaps = f" **{count(absent, 'cell')} missing.**" if absent else ""
    return f"![{alt}]({path})\n\n**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}.{seeds}{gaps}"


def _write_runs(part: StudyPage, above: Path = Path()) -> str:
    """Write what a study's runs show: sentences, figures, tables. `above`: path from its page to the report."""
    study, has_cells = part.study, len(part.study.cells) > 0
    differences = "paired by seed, and factors (in logarithms) too" if study.is_paired else "Welch's, unpaired"
    decided = "nothing is decided" if study.is_found else "what is decided stands under Verdicts"
    brackets = BRACKETS.format(differences=differences, decided=decided)
    blocks = [bullets(findings(study)), brackets] if has_cells else []
    for manifest, path in part.pictures:
        if manifest.numbers:
            seeds = f" Seeds: {spans(manifest.seeds)}." if manifest.seeds else ""
            blocks.append(_picture(manifest, above / path, seeds))
        else:
            blocks.append(f"**{manifest.figure}.** {manifest.caption}")
    blocks += [table.markdown for table in part.tables]
    return _section("What the runs show" if has_cells else "Analytic figures", *blocks)


def _write_page(part: StudyPage, claims: Sequence[Claim], output: Path) -> None:
    """Write the page of one study of a collection: pages/<study>.md and .html."""
    head = f"# {part.study.name}\n\n{part.study.plan['question']}\n\n[The whole report](../report.md)"
    text = _blocks([head, *_verdicts(claims), _write_runs(part, Path(".."))]) + "\n"
    page = output / "pages" / f"{part.study.name}.md"
    write_text_atomic(page, text)
    write_text_atomic(page.with_suffix(".html"), html.from_markdown(text, page.parent, page.parents[1]))


def missing(studies: Sequence[StudyRuns]) -> str:
    """List every cell without a result, and every run that diverged or was stopped."""
    cells = pd.concat([study.cells for study in studies])
    names = {outcome: cell_names(cells[cells["outcome"] == outcome]) for outcome in OUTCOMES}
    reasons = cells.loc[cells["outcome"] == DAMAGED, "reason"].unique() if "reason" in cells else []
    head = f"{len(names.pop(COMPLETED))} of {count(len(cells), 'planned cell')} completed."
    lines = [f"{outcome} ({OUTCOMES[outcome]}): {', '.join(named)}" for outcome, named in names.items() if named]
    return _section("What is missing", head, bullets([*lines, *reasons]))
