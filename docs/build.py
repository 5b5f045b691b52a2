"""Build the site of docs/ into site/html: `make docs`, which installs what it needs (requirements/docs.txt).

Zensical reads pages below its own folder alone, so site/pages/ gets the pages of the navigation and every file that one
of them links to: a picture as it is, a source file as a page. `<!-- chart STUDY METRIC -->` becomes the interactive
chart of the committed runs, in the place of the picture above it. Nothing is fetched, now or by the pages.

    python docs/build.py             the site
    python docs/build.py --tables    only the table of docs/clip_ranges.md, from the doctor's bands
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SITE = ROOT / "site"
PAGES = SITE / "pages"
LINK = re.compile(r"(!?\[[^\]]*\]\()(?!https?:|#|mailto:)([^)#\s]+)")
CHART = re.compile(r"(?:^!\[[^\n]*\n+)?<!-- chart (\w+) (\S+) -->", re.MULTILINE)
TABLE = re.compile(r"^\| ratio per .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
SHOWN_AS_CODE = {".py": "python", ".yaml": "yaml", ".toml": "toml", "": "docker"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
# Of the interactive charts; the report of a study has every metric.
METRICS = [
    *("clip/active", "clip/active_low", "clip/active_high", "clip/out_of_range", "kl_old/k3", "grad_norm"),
    *(
        "ratio/token_max",
        "ratio/token_min",
        "ratio/sequence_max",
        "entropy/behaviour",
        "length/mean",
        "truncation/share",
    ),
    *("reward/mean", "zero_variance/share", "eval/accuracy_expected"),
]


def navigation() -> dict[str, dict[str, str]]:
    """Return section -> title -> file of the navigation."""
    sections = tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["nav"]
    return {
        section: {title: file for page in pages for title, file in page.items()}
        for entry in sections
        for section, pages in entry.items()
    }


def place(file: Path) -> Path:
    """Return where a file of the project stands in the site's pages: of docs/ at the top, others below files/."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS)
    name = Path("files") / file.relative_to(ROOT)
    return name if file.suffix in {".md", ".png", ".svg"} else name.with_name(f"{name.name}.md")


def write_pages() -> set[str]:
    """Write the pages of the navigation and what they lead to; return the studies whose charts they show."""
    waiting = [DOCS / file for pages in navigation().values() for file in pages.values()]
    written, studies = set(), set()
    while waiting:
        file = waiting.pop()
        if file in written:
            continue
        written.add(file)
        target = PAGES / place(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix != ".md":
            shutil.copyfile(file, target)
            continue
        text, linked = page_of(file)
        target.write_text(text if file.parent == DOCS else UNSEARCHED + text)
        studies |= {study for study, _ in CHART.findall(file.read_text())}
        waiting += linked
    return studies


def page_of(file: Path) -> tuple[str, list[Path]]:
    """Return a file as a page of the site, and the files that it links to."""
    text, linked = file.read_text(), []
    if file.suffix != ".md":
        name = file.relative_to(ROOT)
        return f"# {name.name}\n\n`{name}`\n\n````{SHOWN_AS_CODE.get(file.suffix, '')}\n{text}````\n", []

    def relink(match: re.Match[str]) -> str:
        other = Path(os.path.normpath(file.parent / match[2]))
        if not other.is_file():
            return match[0]
        linked.append(other)
        return match[1] + os.path.relpath(place(other), place(file).parent)

    text = LINK.sub(relink, CHART.sub(_frame, text))
    return text.replace("<details>", '<details markdown="1">'), linked


def _frame(match: re.Match[str]) -> str:
    study, metric = match.groups()
    address = f"charts/{study}.html#tab=curves&metric={metric}"
    return f'<iframe class="chart" src="{address}" title="{metric} in the study {study}" loading="lazy"></iframe>'


def write_charts(studies: set[str]) -> None:
    """Write the interactive page of each study, of those committed runs that have curves of their updates."""
    from grpolab.look.document import make
    from grpolab.look.page import embed
    from grpolab.report import html
    from grpolab.report.claims import decide
    from grpolab.report.load import load
    from grpolab.report.plans import outcome_at

    (PAGES / "charts").mkdir(parents=True, exist_ok=True)
    runs = load(outcome_at(ROOT / "results" / "reference"), "reference")
    claims = decide(runs)
    for study in (study for study in runs if study.name in studies):
        tables = {
            name: table[[column for column in table if "/" not in column or column in METRICS or "factor" in column]]
            for name, table in (("updates", study.updates), ("rollouts", study.rollouts))
        }
        known = set(study.updates["signature"])
        cells = study.cells[study.cells["signature"].isin(known)]
        of_study = [claim for claim in claims if claim.study == study.name]
        document = make([replace(study, cells=cells, **tables)], of_study, datetime.now(UTC), {})
        words = f"# {study.name}\n\nCurves of {len(known)} committed runs; `grpolab report {study.name}` has all.\n"
        page = html.from_markdown(words, DOCS, application=embed(document))
        (PAGES / "charts" / f"{study.name}.html").write_text(page)


def first_sentence(text: str) -> str:
    """Return the first sentence below a page's title, without Markdown."""
    paragraphs = re.sub(r"^#[^\n]*\n", "", text).strip().split("\n\n")
    lead = next((paragraph for paragraph in paragraphs if not re.match(r"[#|!<:(]|```", paragraph)), "")
    plain = re.sub(r"\*\*In short\.\*\* |[*`]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(lead.split())))
    return re.split(r"(?<=[.?!]) (?=[A-Z0-9`'])", plain)[0]


def llms_text() -> str:
    """Return llms.txt: the navigation with each page's first sentence."""
    project = tomllib.loads((DOCS / "zensical.toml").read_text())["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    for section, pages in navigation().items():
        lines += ["", f"## {section}", ""]
        for title, file in pages.items():
            says = first_sentence((DOCS / file).read_text())
            lines.append(f"- [{title}]({Path(file).with_suffix('.html')}){': ' if says else ''}{says}")
    return "\n".join(lines) + "\n"


def clip_table() -> str:
    """Return the table of docs/clip_ranges.md: the doctor's bands of the share of clipped tokens."""
    rows = ["| ratio per | loss | range | updates a batch | steps old | clipped tokens | runs |", f"|{'---|' * 7}"]
    with (ROOT / "src" / "grpolab" / "doctor" / "expected.csv").open() as file:
        bands = [row for row in csv.DictReader(file) if row["clip_low"] and not row["source"]]
    for row in bands:
        low, high = (f"{100 * float(row[f'clip_{end}']):.2g}" for end in ("low", "high"))
        share = "0" if high == "0" else f"{low} to {high}%"
        keys = [row["level"], f"`{row['kernel']}`", f"{row['low']} / {row['high']}", row["updates"], row["staleness"]]
        rows.append(f"| {' | '.join([*keys, share, row['runs']])} |")
    return "\n".join(rows)


def main() -> int:
    """Build the site; return Zensical's exit code."""
    if sys.argv[1:] == ["--tables"]:
        page = DOCS / "clip_ranges.md"
        page.write_text(TABLE.sub(lambda _: clip_table(), page.read_text(), count=1))
        return 0
    shutil.rmtree(SITE, ignore_errors=True)
    PAGES.mkdir(parents=True)
    write_charts(write_pages())
    (PAGES / "llms.txt").write_text(llms_text())
    for name, folder in (("zensical.toml", SITE), ("site.css", PAGES), ("iframe-worker.js", PAGES)):
        shutil.copyfile(DOCS / name, folder / name)
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=SITE).returncode


if __name__ == "__main__":
    sys.exit(main())
