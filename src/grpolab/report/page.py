"""The report of a study: claims first, then what its runs show, figures, tables, provenance, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from grpolab.paths import Results, write_text_atomic
from grpolab.report.claims import Claim, decide
from grpolab.report.figures import draw as draw_figure
from grpolab.report.load import Study, load
from grpolab.report.manifest import Manifest, cell_names
from grpolab.report.sentences import findings
from grpolab.report.style import save
from grpolab.report.tables import Table, tables
from grpolab.report.text import count, estimate, markdown_table, number, probability, signed
from grpolab.vocabulary import COMPLETED, OUTCOMES

Progress = Callable[[str], None]
Drawn = tuple[Manifest, Path]  # what a figure shows, and its PNG


def write(results: Results, study: str, progress: Progress = lambda line: None) -> Path:
    """Draw every figure, write every table and the report of a study; the path of report.md.

    `progress` is told what is being done. Raises RequestError when the study has not been planned.
    """
    parts = load(results, study)
    output = results.output(study)
    drawn = _draw(parts, output, progress)
    made = _tabulate(parts, output)
    progress("report")
    sections = [_head(parts[-1]), _claims([claim for part in parts for claim in decide(part)])]
    for part in parts:
        own = [(manifest, path.relative_to(output)) for manifest, path in drawn if manifest.study == part.name]
        sections.append(_study(part, own, made[part.name], alone=len(parts) == 1))
    sections += [_provenance(parts), _missing(parts)]
    path = output / "report.md"
    write_text_atomic(path, "\n\n".join(filter(None, sections)) + "\n")
    return path


def draw(results: Results, study: str, progress: Progress = lambda line: None) -> list[Path]:
    """Draw the figures of a study and write its tables; the paths of the PNG files.

    Beside each stand its PDF and its manifest. Raises RequestError when the study has not been planned.
    """
    parts, output = load(results, study), results.output(study)
    paths = [path for _, path in _draw(parts, output, progress)]
    _tabulate(parts, output)
    return paths


def _draw(parts: Sequence[Study], output: Path, progress: Progress) -> list[Drawn]:
    wanted = [(part, figure) for part in parts for figure in part.plan["figures"]]
    drawn = []
    for done, (part, figure) in enumerate(wanted, start=1):
        progress(f"figure {done}/{len(wanted)}: {part.name} {figure}")
        picture, manifest = draw_figure(part, figure)
        stem = _place(output / "figures", part, parts) / figure
        drawn.append((manifest, save(picture, stem)[0]))
        manifest.write(stem.with_suffix(".json"))
    return drawn


def _tabulate(parts: Sequence[Study], output: Path) -> dict[str, list[Table]]:
    """Write every table; they are returned by study."""
    made = {part.name: tables(part) if len(part.cells) else [] for part in parts}
    for part in parts:
        for table in made[part.name]:
            table.write(_place(output / "tables", part, parts))
    return made


def _place(folder: Path, part: Study, parts: Sequence[Study]) -> Path:
    """Included studies have folders of their own."""
    return folder if part is parts[-1] else folder / part.name


def _head(study: Study) -> str:
    return f"# {study.name}\n\n{study.plan['question']}"


def _claims(claims: Sequence[Claim]) -> str:
    if not claims:
        return ""
    frame = pd.DataFrame(
        {
            "claim": [f"{claim.study} {claim.id}" for claim in claims],
            "says": [claim.says for claim in claims],
            "where": [claim.facet or "everywhere" for claim in claims],
            "contrast": [claim.contrast for claim in claims],
            "effect, paired [95%]": [estimate(*claim.effect[:3], signed) for claim in claims],
            "seeds": [claim.effect.n for claim in claims],
            "Holm p": [probability(claim.holm_p) for claim in claims],
            "sign p": [probability(claim.effect.sign_p) for claim in claims],
            "Wilcoxon p": [probability(claim.effect.wilcoxon_p) for claim in claims],
            "verdict": [f"**{claim.verdict}**" for claim in claims],
        }
    )
    tally = pd.Series([claim.verdict for claim in claims]).value_counts()
    sums = ", ".join(f"{n} {verdict}" for verdict, n in sorted(tally.items()))
    sentences = "\n".join(f"- {claim.sentence}" for claim in claims)
    return (
        f"## Claims\n\nStated in the study files before the runs, each decided where its study leaves it open: {sums}."
        " Undecided is an answer. The sign test and Wilcoxon's signed ranks check each t-test for itself; two-sided,"
        f" they cannot fall below .05 with fewer than 6 seeds.\n\n{markdown_table(frame)}\n\n{sentences}"
    )


def _study(study: Study, drawn: Sequence[Drawn], made: Sequence[Table], alone: bool) -> str:
    title = "What the runs show" if alone else "Analytic figures" if study.cells.empty else study.name
    blocks = [f"## {title}"] if alone or study.cells.empty else [f"## {title}\n\n{study.plan['question']}"]
    if len(study.cells):
        blocks.append("\n".join(f"- {sentence}" for sentence in findings(study)))
        blocks.append("Brackets: 95% t-intervals over seeds (paired where two arms are compared), not corrected.")
    for manifest, path in drawn:
        seeds = f" Seeds: {', '.join(map(str, manifest.seeds))}." if manifest.seeds else ""
        absent = len(manifest.missing) + len(manifest.failed)
        gaps = f" **{count(absent, 'cell')} missing.**" if absent else ""
        note = f"**{manifest.figure}.** {manifest.caption} {manifest.statistic.capitalize()}.{seeds}{gaps}"
        blocks.append(f"![{study.name} {manifest.figure}: {manifest.caption}]({path})\n\n{note}")
    blocks += [f"{table.caption}\n\n{markdown_table(table.shown)}" for table in made]
    return "\n\n".join(blocks) if len(blocks) > 1 else ""


def _provenance(parts: Sequence[Study]) -> str:
    """Where the numbers come from: every run once, however many studies share it."""
    runs = pd.concat([part.done for part in parts]).drop_duplicates("signature")
    if runs.empty:
        return ""
    asked = sum(len(part.done) for part in parts)
    lines = [
        f"- {count(len(runs), 'run')} for {count(asked, 'cell')},"
        f" {number(runs['seconds'].sum() / 60)} minutes of worker time",
        f"- commit {_distinct(runs['commit'])}" + (" (with uncommitted changes)" if runs["dirty"].any() else ""),
        f"- results_version {_distinct(runs['results_version'])}, lock {_distinct(runs['lock_sha256'].str[:12])}",
        f"- Python {_distinct(runs['python'])}, {_distinct(runs['threads'])} thread(s) a run",
        *(f"- hardware: {_hardware(text)}" for text in sorted(runs["hardware"].dropna().unique())),
        f"- seeds {', '.join(map(str, sorted(runs['seed'].unique())))}",
        f"- warm starts: {runs['warm_start'].nunique()}, accuracy {_range(runs['warm_start_accuracy'])}",
    ]
    return "## Provenance\n\n" + "\n".join(lines)


def _distinct(column: pd.Series) -> str:
    """The values of a column; more than one is said, not hidden."""
    values = sorted(column.dropna().astype(str).unique()) or ["unknown"]
    return ", ".join(values) + (f" (**mixed: {len(values)}**)" if len(values) > 1 else "")


def _hardware(text: str) -> str:
    return ", ".join(f"{key} {value}" for key, value in json.loads(text).items())


def _range(column: pd.Series) -> str:
    return f"{number(column.min())} to {number(column.max())}"


def _missing(parts: Sequence[Study]) -> str:
    """Every cell without a result; every run that diverged or was stopped."""
    cells = pd.concat([part.cells for part in parts])
    lines = []
    for outcome, meaning in OUTCOMES.items():
        named = cell_names(cells[cells["outcome"] == outcome]) if outcome != COMPLETED else []
        if named:
            lines.append(f"- {outcome} ({meaning}): {', '.join(named)}")
    done = (cells["outcome"] == COMPLETED).sum()
    head = f"{done} of {count(len(cells), 'planned cell')} completed."
    return "## What is missing\n\n" + "\n".join([head, "", *lines] if lines else [head])
