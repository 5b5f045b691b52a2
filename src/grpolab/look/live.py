"""The page of a study while it trains: `grpolab sweep` has a process that writes it, `grpolab watch` serves it.

It shows finished runs, and of the others what their journals hold so far. Findings of the doctor, figures and tables
come with the report, at the end.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from grpolab.errors import Damaged, RequestError
from grpolab.paths import PYTHON, Results, write_text_atomic
from grpolab.run_files import JOURNAL
from grpolab.vocabulary import MISSING, RESULTS, UNFINISHED

EVERY_S = 60.0  # between two writings, or longer
SHARE = 0.02  # of the machine's CPU time that the writing may take
HOST, PORT, PORTS_TRIED = "127.0.0.1", 8010, 50
SERVED = {".html", ".png", ".pdf", ".md", ".csv", ".json", ".jsonl", ".yaml", ".log"}


class LivePage:
    """The page of one study; what it knows of finished runs is not computed again."""

    def __init__(self, results: Results, study: str) -> None:
        self.results, self.study = results, study
        self.file = results.output(study) / "report.html"
        self.finished: dict[str, Any] = {}  # documents of runs
        self.every = 1  # thinning of their curves

    @property
    def is_complete(self) -> bool:
        """True if every run has an outcome, here or committed: then the page is the report's. Raises RequestError."""
        import pandas as pd

        from grpolab.report.plans import plans_of

        plans = plans_of(self.results, self.study)
        folders = {cell["signature"]: self.results.run(cell["signature"]) for plan in plans for cell in plan["cells"]}
        lacking = [name for name, folder in folders.items() if not (folder / "outcome.json").is_file()]
        committed = self.results.reference / "outcomes.parquet"
        if not lacking or not committed.is_file() or any((folders[name] / JOURNAL).is_file() for name in lacking):
            return not lacking
        return set(lacking) <= set(pd.read_parquet(committed, columns=["signature"])["signature"])

    def write(self, now: datetime) -> None:
        """Write the page. Raises RequestError where there is no plan."""
        # Imported late: the process waits a minute before its first page, and may not be asked for one.
        from grpolab.look import document, page
        from grpolab.report import html
        from grpolab.report.claims import decide
        from grpolab.report.load import load

        studies = load(self.results, self.study, unfinished=True)
        claims = decide(studies)
        numbers = document.make(studies, claims, now, causes={}, live_s=EVERY_S, known=self.finished)
        if numbers["thinning"]["every"] != self.every:  # what is known has another grid
            self.every = numbers["thinning"]["every"]
            numbers = document.make(studies, claims, now, causes={}, live_s=EVERY_S)
        self.finished = {run["signature"]: run for run in numbers["runs"] if run["outcome"] in RESULTS}
        cells = {cell.signature: cell.outcome for study in studies for cell in study.cells.itertuples()}
        counts = Counter(cells.values())
        done = sum(counts[outcome] for outcome in RESULTS)
        words = {MISSING: "not begun", UNFINISHED: "begun"}
        says = ", ".join(f"{n} {words.get(outcome, outcome)}" for outcome, n in counts.items())
        numbers["progress"] = {"done": done, "of": len(cells), "says": says}
        text = (
            f"# {self.study}\n\n{numbers['question']}\n\nWritten while it trains: {says}. Figures, tables and the"
            " doctor's findings come with the report, once every run has a result.\n"
        )
        content = html.from_markdown(text, self.file.parent, application=page.embed(numbers))
        write_text_atomic(self.file, content)


@contextmanager
def written_meanwhile(results: Results, study: str, every_s: float = EVERY_S) -> Iterator[None]:
    """Keep the page of a study up to date, by a process that ends with the block; its failure stops nothing."""
    command = [*PYTHON, "-m", __name__, "--results", str(results.root), "--every", str(every_s), study]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.terminate()  # a page is written by rename


def main() -> None:
    """Write the page again and again until standard input ends, in at most SHARE of the machine's CPU time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--every", type=float, required=True)
    parser.add_argument("study")
    arguments = parser.parse_args()
    os.nice(10)
    page, wait = LivePage(Results(arguments.results), arguments.study), arguments.every
    while not select.select([sys.stdin], [], [], wait)[0]:
        started = time.process_time()
        with suppress(RequestError, Damaged, OSError):
            page.write(datetime.now(UTC))
        wait = max(arguments.every, (time.process_time() - started) / SHARE / (os.cpu_count() or 1))


class Handler(SimpleHTTPRequestHandler):
    """Serves the pages and tables of one results folder to this machine alone."""

    page: LivePage  # set by `make_server`

    def do_GET(self) -> None:
        """Serve a file; the page is written anew first where it is old and a run has no result."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost"):  # another site's name that leads here
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        if self.path.partition("?")[0] == "/":
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", "/" + str(self.page.file.relative_to(self.page.results.root)))
            self.end_headers()
            return
        if Path(self.translate_path(self.path)).resolve() == self.page.file.resolve():
            age = time.time() - self.page.file.stat().st_mtime if self.page.file.exists() else EVERY_S
            with suppress(RequestError, Damaged, OSError):
                if age >= EVERY_S and not self.page.is_complete:
                    self.page.write(datetime.now(UTC))
        super().do_GET()

    def send_head(self) -> Any:
        """Refuse what is outside of the results folder, and what is no page, picture, table or log."""
        file = Path(self.translate_path(self.path)).resolve()
        if file.suffix not in SERVED or not file.is_relative_to(self.page.results.root.resolve()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def make_server(results: Results, study: str, port: int = PORT) -> ThreadingHTTPServer:
    """Return the server of a study's page on the first free port. Raises RequestError without a plan, or a port."""
    page = LivePage(results, study)
    if not page.file.is_file():
        if page.is_complete:
            raise RequestError(f"{page.file} is not there: `grpolab report {study}` writes it")
        page.write(datetime.now(UTC))
    handler = type("HandlerOfStudy", (Handler,), {"page": page})
    for candidate in range(port, port + PORTS_TRIED):
        with suppress(OSError):
            return ThreadingHTTPServer((HOST, candidate), lambda *of: handler(*of, directory=str(results.root)))
    raise RequestError(f"--port={port}: neither it nor one of the next {PORTS_TRIED} is free")


if __name__ == "__main__":
    main()
