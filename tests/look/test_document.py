"""The numbers in a study's page are those of its tables and figures, and no text in it becomes markup."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from report_results import cells_of, change, series_of, write_study

from grpolab.look import curves, document
from grpolab.look.page import WEB, application
from grpolab.meanings import METRICS
from grpolab.paths import Results
from grpolab.quantities import LABELS, QUANTITIES, SCORES
from grpolab.report.claims import decide
from grpolab.report.figures import draw
from grpolab.report.load import load

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "</script><script>alert('1')</script> \"'& \u2028" + "x" * 100_000
Document = dict[str, Any]


def numbers_of(text: str | float, like: str = "") -> np.ndarray:
    """Decode what `curves.to_text` wrote, as the page's JavaScript does; a constant is repeated."""
    if not isinstance(text, str):
        return np.full(len(numbers_of(like)), text)
    groups = np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, 3)
    return np.pad(groups, ((0, 0), (0, 1))).copy().view(">f4")[:, 0].astype(np.float64)


def page_of(results: Results, study: str = "clip_range") -> Document:
    """The document of a study as the page has it: through JSON."""
    studies = load(results, study)
    return json.loads(document.to_json(document.make(studies, decide(studies), NOW)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return write_study(tmp_path_factory.mktemp("results"))


def test_numbers_keep_four_digits_and_nan_and_infinity() -> None:
    values = np.array([0.0, 1.0, -1.5, 12345.678, 1e-12, 3e38, np.inf, -np.inf, np.nan])
    read = numbers_of(curves.to_text(values))
    assert np.array_equal(np.isnan(read), np.isnan(values))
    np.testing.assert_allclose(read, values, rtol=2**-16)


def test_a_curve_of_the_page_is_that_of_the_figure(results: Results) -> None:
    """Held-out accuracy, which figures do not smooth: mean over seeds at each evaluation."""
    (study,) = load(results, "clip_range")
    _, manifest = draw(study, "F1")
    page = page_of(results)
    (shown,) = page["studies"]
    for arm, of_arm in enumerate(shown["arms"]):
        for facet, name in enumerate(shown["facets"]):
            runs = [page["runs"][run] for run, a, f, _ in shown["cells"] if (a, f) == (arm, facet)]
            drawn = series_of(manifest, arm=of_arm["name"], facet=name, metric="eval/accuracy_expected")
            values = [numbers_of(run["eval"]["y"]["eval/accuracy_expected"]) for run in runs]
            np.testing.assert_allclose(np.mean(values, axis=0), drawn["mean"], rtol=2e-5)
            assert numbers_of(runs[0]["eval"]["x"]["rollout_step"]).tolist() == drawn["x"]


def test_updates_of_a_rollout_step_are_joined_as_in_the_figures(results: Results) -> None:
    (study,) = load(results, "clip_range")
    page = page_of(results)
    run = next(run for run in page["runs"] if "clip/active" in run["train"]["y"])
    updates = study.updates[study.updates["signature"] == run["signature"]].groupby("rollout_step")
    grid = run["train"]["x"]["rollout_step"]
    for metric, how in (("clip/active", "mean"), ("grad_norm", "max"), ("ratio/token_min", "min")):
        values = numbers_of(run["train"]["y"][metric], grid)
        np.testing.assert_allclose(values, updates[metric].agg(how), rtol=2e-5)
        assert page["metrics"][metric]["of_step"] == how
    np.testing.assert_allclose(numbers_of(run["train"]["x"]["seconds"]), 0.5 * (1 + np.arange(12)))


def test_long_curves_keep_their_peaks(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = page_of(results)["runs"][0]["train"]
    monkeypatch.setattr(document, "MOST_CURVES", 20_000)
    page = page_of(results)
    k, thinned = page["thinning"]["every"], page["runs"][0]["train"]
    assert k > 1
    assert f"every {k}th rollout step" in page["thinning"]["says"]
    steps = numbers_of(thinned["x"]["rollout_step"]).astype(int)
    assert steps.tolist() == [step for step in range(12) if step % k == 0 or step == 11]
    for metric in ("grad_norm", "reward/mean"):
        values = numbers_of(whole["y"][metric])
        np.testing.assert_array_equal(numbers_of(thinned["y"][metric]), values[steps])
        kept = {**dict(zip(steps, values[steps], strict=True)), **dict(thinned["peaks"].get(metric, []))}
        for peak in (values.argmin(), values.argmax()):
            assert kept[peak] == pytest.approx(values[peak], rel=1e-4)


def test_a_claim_has_the_difference_of_every_seed(results: Results) -> None:
    (study,) = load(results, "clip_range")
    (decided, *_), (shown, *_) = decide([study]), page_of(results)["claims"]
    assert decided.question is not None
    differences = decided.question.differences(len(decided.question.seeds))
    assert shown["arms"] == ["no_clip", "symmetric"]
    assert shown["verdict"] == decided.verdict
    for place, task in enumerate(shown["tasks"]):
        assert [seed for seed, _ in task["differences"]] == list(decided.question.seeds)
        np.testing.assert_allclose([value for _, value in task["differences"]], differences[:, place])
    assert "metric: final_score" in shown["yaml"]


def test_settings_that_differ_from_the_baseline_are_named(results: Results) -> None:
    page = page_of(results)
    (study,) = page["studies"]
    for run, arm, _, _ in study["cells"]:
        differ = page["runs"][run]["settings"]
        expected = {
            "symmetric": {},
            "clip_higher": {"epsilon_high": "0.28 (0.2)"},
            "no_clip": {"kernel": "ratio (clipped)"},
        }
        assert differ == expected[study["arms"][arm]["name"]]


def test_no_text_becomes_markup(tmp_path: Path) -> None:
    results = write_study(tmp_path, question=HOSTILE, seeds=1)
    samples = results.run(cells_of(results)[0]["signature"]) / "samples" / "step_000003.parquet"
    row = {"prompt_index": 0, "sample": 0, "reward": 1.0, "advantage": 0.5, "position": 0, "old_log_prob": -1.0}
    texts = {"prompt": HOSTILE, "completion": HOSTILE, "token": "</script>", "clipped": "high", "ratio": 1.25}
    pd.DataFrame([row | texts]).to_parquet(samples)
    elements = application(load(results, "clip_range"), [], NOW)
    data = elements.partition("</script>")[0].partition(">")[2]
    page = json.loads(data)
    assert page["question"] == HOSTILE
    (sample,) = (sample for sample in page["samples"] if page["runs"][sample["run"]]["signature"] == samples.parts[-3])
    (completion,) = sample["steps"][0]["prompts"][0]["completions"]
    assert completion["tokens"] == ["</script>"]
    assert completion["clip"] == "^"
    cut = len(HOSTILE) - document.MOST_LETTERS
    assert completion["text"] == f"{HOSTILE[: document.MOST_LETTERS]} [{cut:,} characters more]"
    assert elements.count("<script") == 2
    assert elements.count("</script>") == 2


def test_tokens_of_a_vocabulary_are_text() -> None:
    words = ["ĠHow", "Ċ", "many", "▁words", "Ġé", "<|im_end|>", "Ġ文"]
    read = [document._readable(word, has_bytes=True) for word in words]
    assert read == [" How", "\n", "many", " words", " \ufffd", "<|im_end|>", "Ġ文"]
    assert document._readable("Ã·", has_bytes=True) == "÷"
    assert document._readable("Ã·", has_bytes=False) == "Ã·"


def test_a_run_leads_to_its_page_in_mlflow(tmp_path: Path) -> None:
    results = write_study(tmp_path, seeds=1)
    run, file = cells_of(results)[0]["signature"], results.mlflow_runs("clip_range")
    pages = "http://127.0.0.1:5000/#/experiments/1/runs"
    for places, link in (
        ({"pages": pages, "runs": {run: "ab12"}}, f"{pages}/ab12"),
        ({"pages": "javascript:alert(1)//http://", "runs": {run: "ab12"}}, ""),
        ({"pages": pages, "runs": {run: 3}}, ""),
        ([], ""),
    ):
        file.write_text(json.dumps(places))
        assert next(one for one in page_of(results)["runs"] if one["signature"] == run)["mlflow"] == link


def test_a_run_that_trains_is_shown_so_far_and_one_that_is_damaged_is_named(tmp_path: Path) -> None:
    results = write_study(tmp_path)
    first, second, third, *_ = (results.run(cell["signature"]) for cell in cells_of(results))
    (first / "outcome.json").unlink()
    journal = (first / "journal.jsonl").read_bytes()
    (first / "journal.jsonl").write_bytes(journal[: len(journal) // 2])
    change(second / "outcome.json", journal_sha256="0" * 64)
    shutil.rmtree(third)
    studies = load(results, "clip_range", unfinished=True)
    page = document.make(studies, [], NOW)
    runs = {run["signature"]: run for run in page["runs"]}
    assert runs[first.name]["outcome"] == "unfinished"
    assert runs[first.name]["train"]["y"]["reward/mean"]
    assert runs[second.name]["outcome"] == "damaged"
    assert "journal_sha256" in runs[second.name]["reason"]
    assert third.name not in runs
    assert page["studies"][0]["cells"][2][0] == -1
    assert first.name not in set(load(results, "clip_range")[0].done["signature"])


def test_what_is_committed_of_the_program_is_what_its_modules_make(tmp_path: Path) -> None:
    made = tmp_path / "web"
    shutil.copytree(WEB, made, ignore=shutil.ignore_patterns("node_modules"))
    for name in ("bundle.js", "bundle.css"):
        (made / name).unlink()
    subprocess.run(["python", "-I", made / "bundle.py"], check=True, cwd=tmp_path)
    for name in ("bundle.js", "bundle.css"):
        assert (made / name).read_bytes() == (WEB / name).read_bytes(), "run src/grpolab/look/web/bundle.py"


@pytest.mark.parametrize("module", sorted(WEB.glob("*.js")), ids=lambda module: module.name)
def test_no_module_asks_a_server_or_makes_markup_of_a_text(module: Path) -> None:
    if module.name != "bundle.js":  # it has uPlot, which empties its own elements by innerHTML
        assert not re.search(
            r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|innerHTML|insertAdjacent", module.read_text()
        )


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not here: the JavaScript's own tests are not run")
def test_the_javascript_keeps_its_promises() -> None:
    done = subprocess.run(["node", "--test", "tests/"], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_quantity_has_a_curve_or_is_a_score() -> None:
    scores = {"collapsed", "diverged", "stopped", "lost", "below_start", "jitter", "gain", *SCORES}
    assert {*QUANTITIES, *LABELS} - scores == document._CURVES.keys()
    assert set(document._CURVES.values()) <= METRICS.keys()
