"""The appendix of a paper about a study, in LaTeX: `grpolab export-paper`.

Every number, verdict and sentence is the report's: this file only arranges them, and writes Markdown as LaTeX.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from grpolab.errors import format_value
from grpolab.identity import short_hash
from grpolab.meanings import METRICS
from grpolab.paths import Results, shipped_root, write_text_atomic
from grpolab.quantities import QUANTITIES
from grpolab.report import brief, page, provenance, tables
from grpolab.report.claims import CHECK, DESCRIBED, Claim
from grpolab.report.latex import cited, escape, figure, latex, markdown, table
from grpolab.report.load import StudyRuns
from grpolab.report.registered import CONFIRMATORY, EXPLORATORY
from grpolab.report.sentences import find_unmet
from grpolab.report.style import Manifest
from grpolab.report.text import NONE, bullets, count, listing, spans

OPEN = "To be answered by the authors."
THREE_SIDED, PROGRAM = "arxiv:1012.1200", "grpolab"  # keys in references.bib
MAIN = r"""\documentclass{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs,graphicx,hyperref}
\sloppy
\begin{document}
\appendix
\input{appendix}
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""
HEAD = r"""% Written by `grpolab export-paper`. It needs booktabs, graphicx and hyperref.
% A document elsewhere that inputs it needs \graphicspath{{this folder/}} too; main.tex is a document of its own.
"""


def write(results: Results, name: str, folder: Path) -> list[Path]:
    """Write appendix.tex, main.tex, references.bib, figures/ and tables/ of a study; return the first three.

    Raises RequestError as `page.write`.
    """
    parts, claims = page.make_parts(results, name, folder, lambda line: None, shown=True)
    studies = [part.study for part in parts]
    forest = import_module("grpolab.report.figures.comparison").write_verdicts(studies[-1], claims, folder)
    sections = [
        f"{HEAD}\\section{{Study \\texttt{{{escape(name)}}}}}\\label{{app:{re.sub('[^a-z0-9]+', '-', name.lower())}}}",
        *_methods(studies, claims),
        *_deviations(studies, claims),
        *_results(parts, claims, forest),
        *_compute(studies),
        *_checklist(studies, claims),
    ]
    text = "\n\n".join(filter(None, sections)) + "\n"
    files = {"appendix.tex": text, "main.tex": MAIN, "references.bib": _references(text)}
    for file, content in files.items():
        write_text_atomic(folder / file, content)
    return [folder / file for file in files]


def _subsection(title: str, *blocks: str) -> Iterator[str]:
    yield f"\\subsection{{{title}}}"
    yield from blocks


def _methods(studies: Sequence[StudyRuns], claims: Sequence[Claim]) -> Iterator[str]:
    """Write question, factors, settings, evaluation, hypotheses with their registration, and statistics."""
    with_cells = [study for study in studies if len(study.cells)]
    yield from _subsection("Methods", latex(studies[-1].plan["question"]))
    yield f"All runs are of GRPO Lab \\cite{{{PROGRAM}}}."
    for study in with_cells:
        marks = {study.plan["compare"]: f" (compared; baseline `{study.baseline}`)"}
        levels = [
            {"factor": f"{factor}{marks.get(factor, '')}", "levels": ", ".join(f"`{level}`" for level in levels)}
            for factor, levels in study.plan["factors"].items()
        ]
        tasks = ", ".join(sorted({str(task) for task in study.cells["task_title"].dropna()}))
        asked = latex(f" {study.plan['question']}") if study is not studies[-1] else ""
        seeds = spans(int(seed) for seed in study.cells["seed"])
        yield f"\\paragraph{{Study \\texttt{{{escape(study.name)}}}.}}{asked} Tasks: {escape(tasks)}. Seeds: {seeds}."
        yield table(pd.DataFrame(levels), f"Factors of `{study.name}`; a variant is a level of each.")
        yield from _settings(study)
        yield latex(_evaluation(study))
        yield _hypotheses(study)
    registrations = list(_registrations(studies))
    head = "Registered, in a file that only grows (what came before its runs is confirmatory):" if registrations else ""
    yield markdown(f"{head}\n{bullets(registrations)}") if head else "No hypothesis of it was registered."
    yield f"Tests are three-sided \\cite{{{THREE_SIDED}}}. {latex(tables.verdicts([]).caption)}"
    yield latex(page.BRACKETS.format(differences="paired by seed", decided="verdicts have a table of their own"))


def _settings(study: StudyRuns) -> Iterator[str]:
    """Write the settings that all cells share, and by variant those in which cells differ."""
    cells = study.cells.drop_duplicates("variant").set_index("variant")
    cells = cells[[name for name in cells if str(name).startswith("setting/") and name != "setting/seed"]]
    texts = cells.map(lambda value: format_value(_plain(value))).rename(columns=lambda name: name.partition("/")[2])
    is_shared = texts.nunique() == 1
    common = {key: value for key, value in texts.loc[:, is_shared].iloc[0].items() if value != format_value(None)}
    rows = [{"setting": f"`{key}`", "value": f"`{value}`"} for key, value in common.items()]
    yield table(pd.DataFrame(rows), f"Settings of every run of `{study.name}` that its plan keeps and that are on.")
    if not is_shared.all():
        differing = texts.loc[:, ~is_shared].reset_index()
        yield table(differing, f"Settings in which the variants of `{study.name}` differ.")


def _plain(value: object) -> object:
    """Return None for what is not set, and a whole number without a decimal point."""
    if isinstance(value, float):
        return None if value != value else int(value) if value.is_integer() and abs(value) < 1e9 else value
    return value


def _evaluation(study: StudyRuns) -> str:
    """Say what is measured, on how many items, what a score is, and where training begins."""
    known = METRICS.get(study.metric)
    items = study.done["evaluation_items"].dropna().unique() if "evaluation_items" in study.done else []
    of = f", of {listing([f'{int(n):,}' for n in sorted(items)])} held-out items" if len(items) else ""
    text = f"Primary metric: `{study.metric}`{f' ({known.meaning.rstrip(chr(46))})' if known else ''}{of}."
    text += f" `final_score` is the {QUANTITIES['final_score']} (its share there: {study.thresholds.score_tail:g})."
    targets = study.cells.get("setting/warm_start_target", pd.Series(dtype=float)).dropna().unique()
    goal = f" to an accuracy of {listing([f'{target:g}' for target in sorted(targets)])} on training prompts"
    return text + (f" Runs of one seed share a warm start{goal}." if len(targets) and max(targets) > 0 else "")


def _hypotheses(study: StudyRuns) -> str:
    """Tabulate the hypotheses of a study file: what is tested, in which direction, and who claims it."""
    rows = [
        {
            "hypothesis": f"`{hypothesis['id']}`",
            "says": hypothesis.get("tested") or hypothesis["says"],
            "metric": f"`{hypothesis['metric']}`",
            "direction": hypothesis["direction"],
            "kind": hypothesis.get("kind") or "question",
            "claimed by": cited(hypothesis.get("source") or NONE),
        }
        for hypothesis in study.plan.get("hypotheses", [])
    ]
    return table(pd.DataFrame(rows), f"Hypotheses of `{study.name}`.")


def _registrations(studies: Sequence[StudyRuns]) -> Iterator[str]:
    """Write when, at which commit and with which seeds, looks and hashes each registration was made."""
    entries = [entry for study in studies for entry in (study.plan.get("registered") or {}).values()]
    for text in dict.fromkeys(entry["line"] for entry in entries):
        line = json.loads(text)
        hashes = ", ".join(f"`{name}` {digest}" for name, digest in line["hypotheses"].items())
        looks = listing([str(look) for look in line.get("looks") or []])
        yield (
            f"`{line['study']}`, {line['time']}, at commit `{line['commit']}`; hash {short_hash(line)}; seeds"
            f" {spans(line['seeds'])}, looks after {looks or 'the planned numbers'} of them; hashes of the"
            f" hypotheses with their seeds, looks and margins: {hashes}"
        )


def _deviations(studies: Sequence[StudyRuns], claims: Sequence[Claim]) -> Iterator[str]:
    """Write what was given up, is missing, or was not registered before its runs."""
    yield from _subsection("Deviations from the plan, and limits")
    unsure = [claim for claim in claims if claim.label == EXPLORATORY and claim.why]
    late = [f"`{claim.name}`{f' in {claim.where}' if claim.where else ''}: {claim.why}" for claim in unsure]
    notes = [f"precondition {sentence}" for sentence in find_unmet(studies)]
    damage = provenance.damaged(studies)
    notes += [f"damaged and left out: {damage}"] if damage else []
    blocks = [page.given_up(studies), page.missing(studies), page.as_registered(claims), bullets(notes)]
    blocks.append(f"Verdicts that are exploratory, and why:\n{bullets(late)}" if late else "")
    yield markdown("\n\n".join(filter(None, [*blocks, *brief.limits(studies, claims)])))


def _results(
    parts: Sequence[page.StudyPage], claims: Sequence[Claim], forest: tuple[Manifest, Path] | None
) -> Iterator[str]:
    """Write the verdicts, checks and descriptions, then figures and tables, study by study."""
    yield from _subsection("Results")
    tested = [claim for claim in claims if claim.is_finding]
    yield latex(brief.count_verdicts(claims))
    if tested:
        columns = ["claim", "of", "effect [interval of the decision]", "margin", "seeds", "Holm p", "verdict", "label"]
        caption = "The verdict on every hypothesis, at the level of its decision (see Methods)."
        yield table(tables.verdicts(tested).shown[columns], caption)
        flags = bullets(f"`{c.name}`: {flag}" for c in tested for flag in c.flags)
        yield markdown(f"Flags:\n{flags}") if flags else ""
    for made, of_kind in (
        (tables.checks, [claim for claim in claims if claim.label == CHECK]),
        (tables.described, [claim for claim in claims if claim.verdict == DESCRIBED]),
    ):
        yield table((listed := made(of_kind)).shown, listed.caption) if of_kind else ""
    yield figure(*forest) if forest else ""
    for part in parts:
        yield from (figure(manifest, path) for manifest, path in part.pictures if manifest.numbers)
        yield from (table(each.shown, each.caption) for each in part.tables)
        yield "\\clearpage"


def _compute(studies: Sequence[StudyRuns]) -> Iterator[str]:
    _, *blocks = provenance.section(studies) or ["", "No run has a result."]
    yield from _subsection("Compute and versions", *map(markdown, blocks))


def _checklist(studies: Sequence[StudyRuns], claims: Sequence[Claim]) -> Iterator[str]:
    """Answer what NeurIPS' checklist asks, from the data where they say it."""
    runs, tested = provenance.runs_of(studies), [claim for claim in claims if claim.is_finding]
    sure = sum(claim.label == CONFIRMATORY for claim in tested)
    models = runs.get("setting/model", pd.Series(dtype=str)).dropna().astype(str).unique()
    names = listing([f"`{model}`" for model in models])
    has_content = len(runs) and "content" in runs and runs["content"].notna().any()
    data = f"Data and code of the user's have hashes. {OPEN}" if has_content else "No run names data of the user's."
    program = f"GRPO Lab: {_citation()['license']}."
    answers = {
        "Claims": f"{count(len(tested), 'verdict')}, {sure} of them confirmatory: in the table of verdicts.",
        "Limitations": "Under Deviations from the plan, and limits.",
        "Theory, assumptions and proofs": OPEN,
        "Reproducibility": "Commands and versions are under Compute; settings, seeds and hashes under Methods.",
        "Open access to data and code": f"{program} {data}",
        "Experimental setting": "In the tables under Methods; `conf/` at the commit has what they leave out.",
        "Error bars and significance": f"Seeds: {spans(int(seed) for seed in runs['seed']) if len(runs) else 'none'}."
        " Intervals are over seeds, those of verdicts at the level of the decision; captions say which.",
        "Compute resources": f"{provenance.compute(runs)}; the machine is under Compute." if len(runs) else OPEN,
        "Licences of existing assets": f"{program} Models: {f'{names}. {OPEN}' if names else 'tiny, trained here.'}",
        **dict.fromkeys(("Code of ethics", "Broader impacts", "Safeguards", "New assets", "Crowdsourcing"), OPEN),
        **dict.fromkeys(("Review by an ethics board", "Use of language models"), OPEN),
    }
    yield from _subsection("Checklist", markdown(bullets(f"**{asked}.** {said}" for asked, said in answers.items())))


def _citation() -> dict[str, Any]:
    """Return what CITATION.cff says of this program."""
    citation: dict[str, Any] = yaml.safe_load((shipped_root() / "CITATION.cff").read_text(encoding="utf-8"))
    return citation


def _references(text: str) -> str:
    """Return the BibTeX entries that a text cites; of a paper that is not known only its number."""
    entries = re.split(r"\n(?=@)", Path(__file__).with_name("papers.bib").read_text(encoding="utf-8"))
    known = {entry.partition("{")[2].partition(",")[0]: entry.strip() for entry in entries[1:]}
    program = _citation()
    fields = {
        "author": " and ".join(f"{{{author['name']}}}" for author in program["authors"]),
        "title": f"{{{program['title']}}}",
        "note": f"Version {program['version']}, {program['license']}",
    }
    known[PROGRAM] = _entry(PROGRAM, fields)
    keys = sorted(set(re.findall(r"\\cite\{([^}]+)\}", text)))
    return "\n\n".join(known.get(key) or _entry(key, {"title": key.replace("arxiv", "arXiv")}) for key in keys) + "\n"


def _entry(key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@misc{{{key},", *lines, "}"])
