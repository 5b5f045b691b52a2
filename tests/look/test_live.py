"""The page while a study trains: written without the report, served to this machine alone, never over a report."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from report_results import cells_of, write_study

from grpolab.cli import main
from grpolab.doctor import Finding, examine
from grpolab.doctor.run_folder import read_run
from grpolab.errors import RequestError
from grpolab.look import live
from grpolab.look.page import of_run
from grpolab.paths import Results

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """A study of which one run trains."""
    results = write_study(tmp_path)
    (results.run(cells_of(results)[0]["signature"]) / "outcome.json").unlink()
    return results


@pytest.fixture
def port(results: Results) -> Iterator[int]:
    server = live.make_server(results, "clip_range")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def get(port: int, path: str, host: str = "") -> tuple[int, str, str]:
    """Status, place that is led to, and content."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.headers.get("Location", ""), answer.read().decode(errors="replace")


def data_of(page: str) -> dict:
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def test_the_page_says_how_far_the_runs_are(results: Results) -> None:
    page = live.LivePage(results, "clip_range")
    page.write(NOW)
    data = data_of(page.file.read_text())
    assert data["progress"] == {"done": 17, "of": 18, "says": "1 begun, 17 completed"}
    assert data["live_s"] == live.EVERY_S
    assert len(page.finished) == 17
    page.write(NOW)
    again = data_of(page.file.read_text())
    assert sorted(again["runs"], key=str) == sorted(data["runs"], key=str), "what is known is not made again"


def test_it_is_served_to_this_machine_alone(results: Results, port: int, tmp_path: Path) -> None:
    status, place, _ = get(port, "/")
    assert (status, place) == (302, "/studies/clip_range/report.html")
    assert get(port, place)[0] == 200
    assert get(port, place, host="evil.example:80")[0] == 403
    (tmp_path.parent / "secret.json").write_text("{}")
    (results.studies / "clip_range" / "link.json").symlink_to(tmp_path.parent / "secret.json")
    for outside in ("/../secret.json", "/%2e%2e/secret.json", "/studies/clip_range/link.json", "/runs/", "/store.db"):
        assert get(port, outside)[0] == 404, outside


def test_an_old_page_is_written_anew_when_it_is_asked_for_and_a_report_never(
    results: Results, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = results.output("clip_range") / "report.html"
    file.write_text("old")
    assert get(port, "/studies/clip_range/report.html")[2] == "old", "it is young"
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    assert data_of(get(port, "/studies/clip_range/report.html")[2])["progress"]["done"] == 17
    write_study(results.root)  # every run has its outcome
    file.write_text("the report")
    assert get(port, "/studies/clip_range/report.html")[2] == "the report"
    file.unlink()
    with pytest.raises(RequestError, match="`grpolab report clip_range` writes it"):
        live.make_server(results, "clip_range")


@pytest.mark.slow
def test_a_process_writes_it_meanwhile_and_ends_with_the_sweep(results: Results) -> None:
    file, started = results.output("clip_range") / "report.html", time.monotonic()
    with live.written_meanwhile(results, "clip_range", every_s=0.2):
        while not file.exists() and time.monotonic() < started + 60:
            time.sleep(0.1)
    assert data_of(file.read_text())["progress"]["done"] == 17
    written = file.stat().st_mtime_ns
    time.sleep(0.5)
    assert file.stat().st_mtime_ns == written


def test_the_page_of_one_run(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    run = cells_of(results)[1]["signature"]
    (results.run(run) / "settings.yaml").write_text("seed: 1\nrollout_steps: 12\n")
    assert main(["diagnose", run, "--html", "--results", str(results.root)]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file == results.root / "diagnoses" / f"{run}.html"
    data = data_of(file.read_text())
    assert [one["signature"] for one in data["runs"]] == [run]
    assert "eval/accuracy_expected" in data["runs"][0]["eval"]["y"]


def test_the_page_of_one_run_marks_where_a_finding_begins(results: Results) -> None:
    run = cells_of(results)[1]["signature"]
    (results.run(run) / "settings.yaml").write_text("seed: 1\nrollout_steps: 12\n")
    evidence = read_run(results.run(run))
    finding = Finding("likely", ("a number",), cause="entropy_collapse", says="It fell.", cost="Half of it.", step=6)
    diagnosis = replace(examine(evidence), findings=(finding,))
    (shown,) = data_of(of_run(results, evidence, diagnosis, datetime.now(UTC)))["runs"]
    assert [6, "entropy collapse begins"] in shown["marks"]
    assert shown["findings"][0]["says"] == "Half of it. It fell."
