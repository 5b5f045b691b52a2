"""The report among the artefacts of the summary run: no link of it is dead."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fake_runs import STUDY, mirror, study, tracked, uri
from mlflow import MlflowClient

from grpolab.paths import Results
from grpolab.run.tracking import pages
from grpolab.run.tracking.bound import LINK, bound

REPORT = '<html><body><a href="#top">up</a> <a href="pages/a.html">A</a> <a href="pages/gone.html">G</a></body></html>'
PAGE = '<html><body><a href="../report.html#runs">The whole report</a> <a href="https://x.org/">x</a></body></html>'


def test_pages_that_a_report_links_are_in_it_and_other_links_are_words(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "report.html").write_text(REPORT)
    (tmp_path / "pages" / "a.html").write_text(PAGE)
    (tmp_path.parent / "secret.html").write_text("secret")
    text = bound(tmp_path / "report.html")
    inside = json.loads(re.findall(r'id="bound">(.*?)</script>', text)[0])
    assert inside.keys() == {"report.html", "pages/a.html"}
    assert inside["pages/a.html"] == PAGE
    assert text.startswith('<html><body><a href="#top">up</a> <a href="pages/a.html">A</a> G')
    (tmp_path / "report.html").write_text('<a href="../secret.html">s</a>')
    assert bound(tmp_path / "report.html") == "s"


def test_the_summary_run_has_the_pages_that_its_report_links(results: Results) -> None:
    study(results)
    output = results.output(STUDY)
    (output / "pages").mkdir()
    (output / "report.html").write_text(REPORT)
    (output / "pages" / "a.html").write_text(PAGE)
    mirror(results)
    client, summary = MlflowClient(uri(results)), tracked(results)["summary"]
    assert [file.path for file in client.list_artifacts(summary.info.run_id, "pages")] == ["pages/a.html"]
    folder = Path(summary.info.artifact_uri.removeprefix("file://"))
    report = (folder / "report.html").read_text()
    inside = json.loads(re.findall(r'id="bound">(.*?)</script>', report)[0])
    for path, page in inside.items():
        for link in LINK.finditer(page):
            assert (Path("/", path).parent / link[1]).resolve().relative_to("/").as_posix() in inside
    assert not LINK.search((folder / "pages" / "a.html").read_text())
    experiment = client.get_experiment(summary.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    link = pages.report_address(experiment.experiment_id, summary.info.run_id)
    assert link.endswith("?workflowType=machine_learning")
    assert link in experiment.tags["mlflow.note.content"]
