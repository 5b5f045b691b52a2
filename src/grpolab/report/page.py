"""The report of a study: one screen that answers, what its runs show, provenance, and every verdict as an appendix.

A collection's studies have a page each, in pages/. Markdown is the source; an HTML page is that text with the pictures
inside.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from grpolab import RESULTS_VERSION
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results, write_text_atomic
from grpolab.report import brief, checklist, forest, html, screen, tuning
from grpolab.report.checklist import compute, runs_of
from grpolab.report.claims import CHECK, DESCRIBED, Claim, decide, standing
from grpolab.report.figures import FIGURES
from grpolab.report.figures import draw as draw_figure
from grpolab.report.html import Picture
from grpolab.report.load import Study, load
from grpolab.report.regimes import unmet
from grpolab.report.sentences import findings
from grpolab.report.style import Manifest, cell_names, save
from grpolab.report.tables import Table, checks, described, tables, verdicts
from grpolab.report.text import BITS, begun, count, listing, markdown_table, number, spans
from grpolab.vocabulary import COMPLETED, DAMAGED, OUTCOMES

# Said of every study, once; with how its arms are compared, and where it is decided.
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
Section = Callable[[Sequence[Study]], str]  # Markdown about some studies; empty where there is nothing to say


@dataclass(frozen=True)
class Part:
    """One study with what was made of it; paths are relative to where the report lies."""

    study: Study
    pictures: list[Picture]
    tables: list[Table]
    tuning: tuning.Section


def write(
    results: Results,
    study: str,
    progress: Progress = lambda line: None,
    diagnosis: Section = lambda studies: "",
) -> Path:
    """Draw every figure, write every table and the report of a study; the path of report.md.

    Beside it stand report.html and gallery.html. `progress` is told what is being done, and at the end the screen that
    the report begins with; `diagnosis` writes the section about runs in which something is wrong
    (`doctor.section.section`). Raises RequestError when the study has not been planned, or mixes runs that must not be
    compared.
    """
    output = results.output(study)
    state = screen.state_of(results, study)
    parts, claims = _make(results, study, output, progress, shown=True)
    progress("report")
    studies, first = [part.study for part in parts], brief.screen([part.study for part in parts], claims)
    screen.keep(results, study, state, studies, first)
    picture = forest.write_figure(studies[-1], claims, output)
    alone = len(parts) == 1
    sections = [
        f"# {study}\n\n{studies[-1].plan['question']}",
        COMMITTED if study == REFERENCE_STUDY else "",
        _other_version(studies),
        first,
        _picture(*picture) if picture else "",
        _preconditions(studies),
        *(_study(part) for part in parts if alone or part.study is studies[-1]),
        _pages(parts[:-1]),
        tuning.join_sections([part.tuning for part in parts]),
        diagnosis(studies),
        _provenance(studies),
        _missing(studies),
        *_verdicts(claims, output),
    ]
    text, pictures = _blocks(sections) + "\n", [picture for part in parts for picture in part.pictures]
    for part in parts[:-1]:
        _write_page(part, [claim for claim in claims if claim.study == part.study.name], output)
    write_text_atomic(output / "reproducibility.md", checklist.page(studies, claims))
    write_text_atomic(output / "report.html", html.from_markdown(text, output))
    write_text_atomic(output / "gallery.html", html.gallery(study, pictures, output, "report.html"))
    write_text_atomic(output / "report.md", text)  # last: it says that all is drawn
    progress(f"\n{brief.plain(first)}\n")
    return output / "report.md"


def write_found(study: Study, output: Path, found: str, lacks: Sequence[str], diagnosis: str) -> Path:
    """The report of runs that others made, report.md and report.html in `output`; the path of report.md.

    In Markdown, `found` says which runs they are, `lacks` what their logs do not hold, `diagnosis` what is wrong there.
    """
    pictures = _drawn([study], output, lambda line: None, shown=False)[study.name]
    written = [said for table in tables(study) if (said := table.said)]
    for table in written:
        table.write(output / "tables")
    none = tuning.Section([], [], [])
    sections = [
        f"# {study.name}\n\n{study.plan['question']}",
        found,
        f"## What the logs lack\n\n{_bullets(lacks)}",
        _study(Part(study, pictures, written, none)),
        diagnosis,
    ]
    text = _blocks(sections) + "\n"
    write_text_atomic(output / "report.html", html.from_markdown(text, output))
    write_text_atomic(output / "report.md", text)
    return output / "report.md"


def draw(results: Results, study: str, single_seeds: bool = False) -> list[Path]:
    """Draw the figures of a study and write its tables; the paths of the PNG files.

    Beside each stand its PDF and its manifest. `single_seeds`: with a thin line for each seed. Raises RequestError as
    `write`.
    """
    output = results.output(study)
    parts, _ = _make(results, study, output, lambda line: None, single_seeds)
    pictures = [output / path for part in parts for manifest, path in part.pictures if manifest.numbers]
    return [*pictures, *(path for part in parts for path in part.tuning.pictures)]


def _make(
    results: Results, name: str, output: Path, progress: Progress, single_seeds: bool = False, shown: bool = False
) -> tuple[list[Part], list[Claim]]:
    """Figures and tables, study by study, so that what one study needs is computed once; and every claim, decided.

    `shown`: of the figures those that the collection chooses, where it does.
    """
    loaded = load(results, name)
    claims = decide(loaded)
    studies = [replace(study, single_seeds=single_seeds, standing=standing(study, claims)) for study in loaded]
    pictures, parts = _drawn(studies, output, progress, shown), list[Part]()
    for study in studies:
        place = _place(study, studies)
        written = tables(study) if len(study.cells) else []
        for table in written:
            table.write(output / "tables" / place)
        parts.append(Part(study, pictures[study.name], written, tuning.make_section(study, output, place)))
    return parts, claims


def _place(study: Study, studies: Sequence[Study]) -> Path:
    """Included studies have folders of their own."""
    return Path() if study is studies[-1] else Path(study.name)


def _drawn(studies: Sequence[Study], output: Path, progress: Progress, shown: bool) -> dict[str, list[Picture]]:
    """Every figure of each study, drawn and written; where there are many, by a process for each core.

    The processes are started anew and are given the studies: a fork would copy the locks of this one's threads.
    """
    chosen = studies[-1].plan.get("shown") if shown else None
    wanted = [
        (study, figure, Path("figures") / _place(study, studies) / f"{study.name}_{FIGURES[figure].name}.png")
        for study in studies
        for figure in study.plan["figures"]
        if not chosen or study is studies[-1] or f"{study.name}.{figure}" in chosen
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = min(cores, MOST_WORKERS) if len(wanted) >= MANY_FIGURES else 1
    drawn: dict[str, list[Picture]] = {study.name: [] for study in studies}
    with (
        _safe_path(),
        ProcessPoolExecutor(workers, get_context("spawn"), _given, (studies,))
        if workers > 1
        else nullcontext() as pool,
    ):
        asked = [
            pool.submit(_draw_given, study.name, figure, output / path) if pool else None
            for study, figure, path in wanted
        ]
        for number, (future, (study, figure, path)) in enumerate(zip(asked, wanted, strict=True), start=1):
            progress(f"figure {number}/{len(wanted)}: {study.name} {figure}")
            manifest = future.result() if future else _draw_one(study, figure, output / path)
            drawn[study.name].append((manifest, path))
    return drawn


@contextmanager
def _safe_path() -> Iterator[None]:
    """The -P of `paths.PYTHON` for processes whose command is Python's own."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]


def _draw_one(study: Study, figure: str, path: Path) -> Manifest:
    """Draw a figure and write it as PNG, PDF and manifest; nothing where the study lacks what it needs."""
    drawing, manifest = draw_figure(study, figure)
    if manifest.numbers:
        save(drawing, path.with_suffix(""))
        manifest.write(path.with_suffix(".json"))
    else:  # no picture of earlier runs stays
        for end in (".png", ".pdf", ".json"):
            path.with_suffix(end).unlink(missing_ok=True)
    return manifest


_STUDIES: dict[str, Study] = {}  # of a process that draws


def _given(studies: Sequence[Study]) -> None:
    """What a process that draws is begun with."""
    _STUDIES.update({study.name: study for study in studies})


def _draw_given(study: str, figure: str, path: Path) -> Manifest:
    return _draw_one(_STUDIES[study], figure, path)


def _blocks(blocks: Iterable[str]) -> str:
    """Those that say something, with an empty line between them."""
    return "\n\n".join(filter(None, blocks))


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _other_version(studies: Sequence[Study]) -> str:
    """What stands at the top where this program would compute other numbers than those of the runs; else empty."""
    done = [study.done for study in studies if "results_version" in study.done]  # nothing has been run yet
    versions = sorted({int(version) for runs in done for version in runs["results_version"].dropna()})
    if versions in ([], [RESULTS_VERSION]):
        return ""
    theirs = listing([str(version) for version in versions])
    return (
        f"**These runs are of results_version {theirs}, this program is of {RESULTS_VERSION}:** what it trains has"
        " other numbers and is never drawn together with these; CHANGELOG.md says what changed."
    )


def _preconditions(studies: Sequence[Study]) -> str:
    """What stands at the top of a report whose studies fail what they presuppose; empty where they do not."""
    sentences = unmet(studies)
    if not sentences:
        return ""
    failed = f"**{count(len(sentences), 'precondition')} not met**"
    return f"{failed} (`grpolab regimes` explains them; with more seeds they may be):\n\n{_bullets(sentences)}"


def _verdicts(claims: Sequence[Claim], output: Path | None = None) -> list[str]:
    """Every claim that was tested, each with its sentence, the checks, and what is only described; as tables too."""
    kinds = {
        "Verdicts": ([claim for claim in claims if claim.is_finding], verdicts),
        "Checks": ([claim for claim in claims if claim.label == CHECK], checks),
        "Described": ([claim for claim in claims if claim.verdict == DESCRIBED], described),
    }
    sections = []
    for title, (of_kind, table_of) in kinds.items():
        if not of_kind:
            continue
        table = table_of(of_kind)
        if output:
            table.write(output / "tables")
        sentences = _bullets(f"{claim.study} {claim.sentence}" for claim in of_kind) if title == "Verdicts" else ""
        sections.append(
            _blocks([f"## {title}", table.caption, markdown_table(table.shown), sentences, _as_registered(of_kind)])
        )
    return sections


def _as_registered(claims: Sequence[Claim]) -> str:
    """The words that were registered, of claims of which the page says less; empty where it says all as it is."""
    words = {f"{claim.study} {claim.id}": claim.registered for claim in claims if claim.registered}
    if not words:
        return ""
    head = "As registered (above stands what was tested, which is less; the registered words decide nothing more):"
    return f"{head}\n\n{_bullets(f'{name}: {text}' for name, text in words.items())}"


def _picture(manifest: Manifest, path: Path, seeds: str = "") -> str:
    """A picture and what it shows, as two paragraphs."""
    alt = "".join(letter for letter in manifest.alt if letter not in "`[]*\\")  # Markdown reads these
    absent = len(manifest.missing) + len(manifest.failed)
    gaps = f" **{count(absent, 'cell')} missing.**" if absent else ""
    return f"![{alt}]({path})\n\n**{manifest.figure}.** {manifest.caption} {begun(manifest.statistic)}.{seeds}{gaps}"


def _study(part: Part, above: Path = Path()) -> str:
    """What the runs of a study show: sentences, figures, tables. `above`: the way from its page to the report."""
    study, has_cells = part.study, len(part.study.cells) > 0
    differences = "paired by seed, and factors (in logarithms) too" if study.is_paired else "Welch's, unpaired"
    decided = "what is decided stands under Verdicts" if study.score_name == "accuracy" else "nothing is decided"
    brackets = BRACKETS.format(differences=differences, decided=decided)
    blocks = [_bullets(findings(study)), brackets] if has_cells else []
    for manifest, path in part.pictures:
        if not manifest.numbers:
            blocks.append(f"**{manifest.figure}.** {manifest.caption}")
            continue
        seeds = f" Seeds: {spans(manifest.seeds)}." if manifest.seeds else ""
        blocks.append(_picture(manifest, above / path, seeds))
    for table in part.tables:
        blocks += [table.caption, markdown_table(table.shown)]
    title = "What the runs show" if has_cells else "Analytic figures"
    return _blocks([f"## {title}", *blocks]) if blocks else ""


def _write_page(part: Part, claims: Sequence[Claim], output: Path) -> None:
    """The page of one study of a collection: pages/<study>.md and .html."""
    head = f"# {part.study.name}\n\n{part.study.plan['question']}\n\n[The whole report](../report.md)"
    text = _blocks([head, *_verdicts(claims), _study(part, Path(".."))]) + "\n"
    page = output / "pages" / f"{part.study.name}.md"
    write_text_atomic(page, text)
    write_text_atomic(page.with_suffix(".html"), html.from_markdown(text, page.parent, page.parents[1]))


def _pages(parts: Sequence[Part]) -> str:
    """Where the figures, tables and verdicts of each study of a collection stand."""
    if not parts:
        return ""
    lines = [f"[{part.study.name}](pages/{part.study.name}.md): {part.study.plan['question']}" for part in parts]
    return _blocks(["## The studies, a page each", _bullets(lines)])


def _provenance(parts: Sequence[Study]) -> str:
    """Where the numbers come from: every run once, however many studies share it; and the commands that make them."""
    runs = runs_of(parts)
    if runs.empty:
        return ""
    studies, accuracy = [part for part in parts if len(part.cells)], runs["warm_start_accuracy"]
    timings, period = pd.concat([part.timings for part in parts if len(part.timings)] or [pd.DataFrame()]), ""
    if len(timings) and set(runs["signature"]) <= set(timings["signature"]):  # the reference keeps those of some runs
        ends = timings["time_ms"].agg(["min", "max"]).astype("float64") / 1000
        first, last = (f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}" for end in ends)
        period = f", trained from {first} to {last} UTC"
    machines = [json.loads(text) for text in sorted(runs["hardware"].dropna().unique())]
    without = int(runs["journal_sha256"].isna().sum())
    unchecked = count(without, "run") if without else ""
    has_content = "content" in runs and runs["content"].notna().any()
    lines = [
        f"{count(len(runs), 'run')} for {count(sum(len(part.done) for part in parts), 'cell')},"
        f" {compute(runs)}{period}",
        f"commit {_distinct(runs['commit'])}" + (" (with uncommitted changes)" if runs["dirty"].any() else ""),
        *([f"without a recorded hash of the journal, so that it was not checked: {unchecked}"] if unchecked else []),
        f"results_version {_distinct(runs['results_version'])}, lock {_distinct(runs['lock_sha256'].str[:12])}",
        f"Python {_distinct(runs['python'])}, {_distinct(runs['threads'])} thread(s) a run",
        *("hardware: " + ", ".join(f"{key} {value}" for key, value in machine.items()) for machine in machines),
        *([f"data and code of the user's: {_distinct(runs['content'])}"] if has_content else []),
        "seeds: " + "; ".join(f"{part.name} {', '.join(map(str, part.plan['seeds']))}" for part in studies),
        f"warm starts: {runs['warm_start'].nunique()}, accuracy {number(accuracy.min())} to {number(accuracy.max())},"
        " sampled on training prompts where each ended (a run's `start` is its first evaluation, on held-out prompts)",
    ]
    commits = runs["commit"].value_counts().index
    whole_plan = parts[-1].plan
    commit = whole_plan.get("commit") if len(commits) > 1 else next(iter(commits), None)
    seeds = [{tuple(sorted(of)) for of in part.cells.groupby("variant")["seed"].unique()} for part in studies]
    asked = ""  # where studies have seeds of their own, their files say which
    different = set().union(*seeds)
    if any(len(of_study) > 1 for of_study in seeds) or (len(different) > 1 and whole_plan.get("looks")):
        asked = " --until-decided"
    elif len(different) == 1:
        (same,) = different
        listed = ",".join(map(str, same)) + ("," if len(same) == 1 else "")
        asked = f" --seeds {len(same) if same == (*range(len(same)),) else listed}"
    named = shlex.quote(whole_plan.get("file", parts[-1].name))
    commands = [
        *([f"git checkout {commit}"] if commit else []),
        f"grpolab sweep {named}{asked}",
        f"grpolab report {named}",
    ]
    note = f" The runs are of {len(commits)} commits; each run's is in its manifest." if len(commits) > 1 else ""
    reproduce = f"Reproduce (what has an outcome is not trained again):{note}"
    return _blocks(["## Provenance", _bullets(lines), BITS, reproduce, "\n".join(["```", *commands, "```"])])


def _distinct(column: pd.Series) -> str:
    """The values of a column; more than one is said, not hidden."""
    values = sorted(column.dropna().astype(str).unique()) or ["unknown"]
    return ", ".join(values) + (f" (**mixed: {len(values)}**)" if len(values) > 1 else "")


def _missing(parts: Sequence[Study]) -> str:
    """Every cell without a result; every run that diverged or was stopped."""
    cells = pd.concat([part.cells for part in parts])
    names = {outcome: cell_names(cells[cells["outcome"] == outcome]) for outcome in OUTCOMES}
    reasons = cells.loc[cells["outcome"] == DAMAGED, "reason"].unique() if "reason" in cells else []
    head = f"{len(names.pop(COMPLETED))} of {count(len(cells), 'planned cell')} completed."
    lines = [f"{outcome} ({OUTCOMES[outcome]}): {', '.join(named)}" for outcome, named in names.items() if named]
    return _blocks(["## What is missing", head, _bullets([*lines, *reasons])])
