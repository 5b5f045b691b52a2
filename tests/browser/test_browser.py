"""The page of a study in a browser: every control of its five tabs, and its numbers against the study's tables."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import on_page as on
import pandas as pd
import pytest
import report_results
import study_pages
from PIL import Image
from report_results import HYPOTHESES, cells_of, write_study
from study_pages import FACTORS, GROUPS, SAMPLED_STEPS, STUDY, write_samples

from grpolab.report.figures.panels import smooth
from grpolab.report.load import load
from grpolab.report.measures import band_of
from grpolab.report.statistics import intervals

pytestmark = [pytest.mark.optional, pytest.mark.timeout(120)]
HOSTILE = (
    "<script>window.hacked = 1</script></script><img src=x onerror='hacked=1'>\"'`&amp;\u2028\u2029{{ 7*7 }}]]>--><!--"
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return study_pages.small_study(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def study(results):
    return load(results, STUDY)[-1]


@pytest.fixture(scope="module")
def address(results):
    return study_pages.write_page(results).as_uri()


# --- the tabs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "metric", "arm", "column", "unit"),
    [
        (0, "final_score", "no_clip", "difference in final_score", "accuracy, points"),
        (1, "clip/active", "clip_higher", "factor of clip/active", "factor of clip/active"),
    ],
)
def test_a_verdict_leads_to_its_seeds_and_to_its_curves(visit, address, study, place, metric, arm, column, unit):
    page = visit(address)
    says = ["Without clipping, accuracy is lower", "A higher bound clips less"]
    assert page.locator("button.claim .says").all_inner_texts() == says
    page.get_by_role("button", name="own units").click()
    assert unit in page.locator("#look .forest h2").all_inner_texts()
    for _ in range(place + 1):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    evidence = page.locator(".evidence")
    scores = on.of_runs(study, metric).unstack("seed")
    mine, base = scores.xs(arm, level="arm"), scores.xs("symmetric", level="arm")
    expected, times = (mine - base, 100) if place == 0 else (mine / base, 1)
    rows = {(row["task"], int(row["seed"])): float(row[column]) for row in on.saved_rows(page)}
    assert rows == pytest.approx(expected.stack().to_dict(), rel=1e-5, abs=1e-6)
    titles = evidence.locator(".dots circle title").all_text_contents()
    said = [on.number(title.partition(": ")[2]) for title in titles]
    assert said == pytest.approx(times * expected.to_numpy().ravel(), rel=0.01)
    assert "3 used, of 3" in evidence.inner_text()
    evidence.get_by_text("lines of the study file").click()
    assert f"of: {arm}" in evidence.locator("pre").inner_text()
    page.go_back()
    evidence.wait_for(state="detached")
    page.locator("button.claim").nth(place).click()
    evidence.get_by_role("button", name="curves of this").click()
    assert on.state(page)["off"] == [{"no_clip": "clip_higher"}.get(arm, "no_clip")]
    assert page.locator(".metric b").inner_text() == ("eval/accuracy_expected", "clip/active")[place]
    page.go_back()
    evidence.wait_for()
    page.keyboard.press("Escape")
    assert not evidence.count()


@pytest.mark.parametrize(
    ("metric", "join"),
    [
        *(("clip/active", "mean"), ("grad_norm", "max"), ("ratio/token_min", "min"), ("reward/mean", "mean")),
        ("eval/accuracy_expected", "mean"),
    ],
)
def test_the_pointer_reads_what_the_tables_say(visit, address, study, metric, join):
    page = visit(f"{address}#tab=curves&smooth=none")
    on.pick_metric(page, metric)
    raw = on.values(study, metric, join)
    steps = sorted({*raw.index.get_level_values("rollout_step")})
    third = len(steps) // 3
    for step in (steps[0], steps[third], steps[-1]):
        for panel in FACTORS["task"]:
            said = on.point(page, panel, step / steps[-1])
            assert {tip["head"] for tip in said.values()} == {f"rollout steps {step}"}
            on.agrees(said, raw, step, band_of(study, metric))
    on.point(page, "sorting", steps[third] / steps[-1])
    for key, place in {"ArrowLeft": third - 1, "ArrowRight": third, "Shift+ArrowRight": -1}.items():
        page.keyboard.press(key)
        assert on.heads(page) == {f"rollout steps {steps[place]}"}
    step, part = steps[third], steps[third] / steps[-1]
    arms = raw.index.get_level_values("arm")
    others, base = raw[arms != "symmetric"], raw[arms == "symmetric"].droplevel("arm")
    base = base.reindex(others.index.droplevel("arm")).set_axis(others.index)
    page.get_by_role("button", name="difference").click()
    on.agrees(on.point(page, "sorting", part), others - base, step)
    page.get_by_role("button", name="log y").click()  # factors, and geometric means
    on.agrees(on.point(page, "sorting", part), others / base, step, intervals.geometric_band)
    page.get_by_role("button", name="absolute").click()
    on.agrees(on.point(page, "sorting", part), raw, step, intervals.geometric_band)


def test_curves_have_axes_seeds_and_arms_to_choose(visit, address, study):
    page = visit(address)
    page.keyboard.press("2")
    on.pick_metric(page, "reward/mean")
    ends = {"optimizer_step": (0, 20), "completions": (128, 1536), "seconds": (0.5, 6), "rollout_step": (0, 11)}
    axis = on.control(page, "x axis")
    assert {one.get_attribute("value") for one in axis.locator("option").all()} == ends.keys()
    for name, (first, last) in ends.items():
        axis.select_option(name)
        place = first + 5 * (last - first) / 11 if name != "optimizer_step" else 10
        head = on.point(page, "addition", (place - first) / (last - first))["addition"]["head"]
        assert on.number(head.split()[-1]) == pytest.approx(place)
    on.control(page, "smooth").select_option("none")
    page.get_by_role("button", name="seeds").click()
    arm, seed, value = re.split(", seed |: ", on.point(page, "addition", 5 / 11)["addition"]["seed"])
    assert on.number(value) == pytest.approx(
        on.values(study, "reward/mean").loc["addition", arm, 5][int(seed)], rel=1e-3
    )
    page.get_by_role("button", name="mean", exact=True).click()
    legend = page.get_by_role("group", name="arms").get_by_role("button")

    def shown() -> list[str]:
        page.wait_for_timeout(600)  # two clicks in a row would be a double click
        return sorted(row[0] for row in on.point(page, "sorting", 0.4)["addition"]["rows"])

    arms = sorted(FACTORS["clip"])
    legend.nth(2).click()
    assert shown() == ["clip_higher", "symmetric"]
    for expected in (["no_clip"], arms):
        legend.nth(2).dblclick()
        assert shown() == expected
    for expected in (["symmetric"], arms):
        legend.nth(0).press("Shift+Enter")
        assert shown() == expected


def test_curves_are_zoomed_and_have_tables(visit, address):
    page = visit(f"{address}#tab=curves&metric=reward/mean")
    on.move(page, "addition", 0.25)
    page.mouse.down()
    on.move(page, "addition", 0.5)
    on.move(page, "addition", 0.75)
    page.mouse.up()
    assert [float(end) for end in on.state(page)["zoom"]] == pytest.approx([2.75, 8.25], abs=0.1)
    on.point(page, "sorting", 0.01)
    assert on.heads(page) == {"rollout steps 3"}
    page.locator(".u-over").first.dblclick()
    assert "zoom" not in on.state(page)
    page.keyboard.press("+")
    assert [float(end) for end in on.state(page)["zoom"]] == pytest.approx([2.75, 8.25], abs=0.01)
    page.keyboard.press("-")
    assert "zoom" not in on.state(page)
    page.get_by_role("button", name="sorting", exact=True).click()
    assert page.locator(".panel h3").all_inner_texts() == ["sorting"]
    page.get_by_role("button", name="show everything").click()
    assert page.locator(".panel h3").all_inner_texts() == FACTORS["task"]
    page.keyboard.press("t")
    page.locator(".behind table").first.wait_for()
    assert page.locator(".panels").is_hidden()


def test_curves_are_smoothed_as_those_of_the_figures(visit, address, study):
    page = visit(f"{address}#tab=curves&metric=reward/mean")
    raw = on.values(study, "reward/mean")
    panels = {key: smooth(of.droplevel(["facet", "arm"])) for key, of in raw.groupby(["facet", "arm"])}
    smoothed = pd.concat(panels, names=["facet", "arm"])
    for step in (0, 1, 6, 11):
        on.agrees(on.point(page, "addition", step / 11), smoothed, step, intervals.share_band)
    on.control(page, "smooth").select_option("none")
    on.agrees(on.point(page, "addition", 1), raw, 11, intervals.share_band)


def test_runs_are_sorted_filtered_and_opened(visit, address, results, study):
    page = visit(address)
    on.tab(page, "Runs")
    rows = page.locator(".runs tbody tr")
    assert rows.count() == 18
    heading = page.locator(".runs thead").get_by_role("button", name="final")
    final = on.of_runs(study, "final_score")
    for most in (final.min(), final.max()):
        heading.click()
        assert on.number(rows.first.locator("td").nth(6).inner_text()) == pytest.approx(most, abs=5e-4)
    page.keyboard.press("/")
    page.keyboard.type("no_clip sorting")
    assert rows.count() == 3
    assert "3 cells" in page.locator(".controls").first.inner_text()
    heading.click()
    assert rows.locator("td:nth-child(4)").all_inner_texts() == ["0", "1", "2"]
    page.get_by_label("filter").fill("diverged")
    assert page.get_by_text("1 cell", exact=True).count() == rows.count() == 1
    rows.first.click()
    run = page.locator("article.run")
    cell = next(of for of in cells_of(results) if of["variant"] == "no_clip/sorting" and of["seed"] == 2)
    assert on.state(page)["run"] == [cell["signature"]]
    assert run.locator("h2").inner_text() == "no_clip, sorting, seed 2"
    assert "diverged after 6 rollout steps" in run.inner_text()
    assert run.locator(".sides td").all_inner_texts() == ["kernel", "ratio (clipped)"]
    assert run.locator(".findings b").count()
    folder = run.get_by_role("link", name="folder").evaluate("link => link.href")
    assert Path(urlsplit(folder).path) == results.run(cell["signature"])
    titles = run.locator(".panel h3")
    before = titles.all_inner_texts()
    run.get_by_role("combobox", name="add a curve").fill("ratio/ess")
    page.keyboard.press("Enter")
    assert titles.all_inner_texts() == [*before, "ratio/ess"]
    titles.first.get_by_role("button").click()
    assert titles.all_inner_texts() == [*before[1:], "ratio/ess"]
    page.keyboard.press("Escape")
    assert not run.count()
    page.get_by_label("filter").fill("no_clip addition 0")
    rows.first.get_by_role("button").press("Enter")
    run.get_by_role("button", name="its tokens").click()
    assert on.state(page)["tab"] == ["tokens"]
    assert on.control(page, "run").locator("option:checked").inner_text() == "no_clip, addition, seed 0"


def test_tokens_say_what_happened_to_them(visit, address, results):
    page = visit(address)
    on.tab(page, "Tokens")
    on.control(page, "run").select_option(label="clip_higher, sorting, seed 0")
    cell = next(of for of in cells_of(results) if of["variant"] == "clip_higher/sorting" and of["seed"] == 0)
    kept = pd.read_parquet(results.run(cell["signature"]) / "samples" / "step_000008.parquet")
    group = page.locator(".group")
    (first, second) = GROUPS
    assert group.locator(".prompt").inner_text() == first
    assert group.locator("li .text").all_inner_texts() == ["".join(tokens) for tokens in GROUPS[first]]
    assert group.locator("h3 .soft").inner_text().strip() == "7 tokens: 2 clipped above, 3 clipped below"
    assert group.locator("li .parts").first.inner_text() == "reward 1 (correct 1), advantage +1.25"
    for row in kept[kept["prompt"] == first].itertuples():
        group.locator("li").nth(row.sample).locator(".text span").nth(row.position).hover()
        said = dict(re.findall(r"^(.*?)\t(.*)$", page.locator(".tip.free").inner_text(), re.MULTILINE))
        for name, value in {"ratio": row.ratio, "log-prob": row.old_log_prob, "entropy": row.entropy}.items():
            assert on.number(said[name]) == pytest.approx(value, rel=1e-3)
        assert on.number(said["sampler gap"]) == pytest.approx(0.001)
        assert said["clip"] == {"high": "clipped above", "low": "clipped below", "": "not clipped"}[row.clipped]
    shades = set()
    for name in ("clip side", "advantage", "entropy", "gap of the sampler", "ratio"):
        page.keyboard.press(name[0])
        assert name.split()[0] in page.locator("#view > .scale b").inner_text()
        shades.add(tuple(group.locator(".text span").evaluate_all("all => all.map((one) => one.style.background)")))
    assert len(shades) == 5
    page.keyboard.press("ArrowDown")
    assert group.locator(".prompt").inner_text() == second
    assert group.locator("li .text").nth(2).text_content() == "↵\n4"
    page.keyboard.press("ArrowLeft")
    assert on.state(page)["step"] == [str(SAMPLED_STEPS[1])]
    on.control(page, "rollout step").select_option("0")
    on.control(page, "prompt").select_option("0")
    on.control(page, "beside it").select_option(label="symmetric, sorting, seed 0")
    for place, arm in enumerate(("clip_higher", "symmetric")):
        assert group.locator("h3").nth(place).inner_text().startswith(f"{arm}, sorting, seed 0")
    assert group.locator(".prompt").all_inner_texts() == [first, first]
    page.get_by_role("button", name="table").click()
    assert group.locator(".behind table").count() == 6
    assert {row["prompt"] for row in on.saved_rows(page)} == {first}
    page.keyboard.press("?")
    assert page.locator("dialog.help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog.help").is_hidden()


def test_files_hold_what_is_seen(visit, address, study):
    page = visit(f"{address}#tab=curves&metric=grad_norm&smooth=none&off=clip_higher&zoom=2&zoom=9")
    expected = on.values(study, "grad_norm", "max").drop("clip_higher", level="arm")
    means = expected.mean(axis=1)[expected.index.get_level_values("rollout_step").isin(range(2, 10))]
    rows = on.saved_rows(page)
    said = {(row["panel"], row["arm"], int(row["rollout_step"])): float(row["grad_norm"]) for row in rows}
    assert said == pytest.approx(means.dropna().to_dict(), rel=1e-4)
    svg = ElementTree.fromstring(on.saved(page, "SVG"))
    texts = {"".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {"grad_norm", "symmetric", "no_clip", *FACTORS["task"]} <= texts
    assert "clip_higher" not in texts
    with Image.open(io.BytesIO(on.saved(page, "PNG"))) as picture:
        assert picture.size == (2 * int(svg.get("width", 0)), 2 * int(svg.get("height", 0)))
        assert len(picture.convert("RGB").getcolors(2**20) or []) > 50
    for name, least in {"Answer": 1, "Runs": 18, "Tokens": 7}.items():
        on.tab(page, name)
        assert len(on.saved_rows(page)) >= least
        if name != "Runs":
            ElementTree.fromstring(on.saved(page, "SVG"))
            assert on.saved(page, "PNG").startswith(b"\x89PNG")
    on.tab(page, "Report")
    assert page.get_by_role("button", name="CSV", exact=True).is_disabled()


def test_a_link_restores_what_was_seen(visit, address):
    page = visit(address)
    on.tab(page, "Curves")
    on.pick_metric(page, "clip/active_low")
    on.control(page, "x axis").select_option("completions")
    for name in ("difference", "log y", "seeds"):
        page.get_by_role("button", name=name).click()
    on.control(page, "to").select_option("clip_higher")
    page.get_by_role("group", name="arms").get_by_role("button", name="no_clip").click()
    page.get_by_role("button", name="sorting", exact=True).click()
    page.get_by_role("button", name="copy link").click()
    page.get_by_text("copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    tokens = f"{address}#tab=tokens&step=4&prompt=1&colour=entropy"
    runs = f"{address}#tab=runs&sort=-best&find=clip_higher"
    for place in (link, f"{address}#tab=answer&unit=own&claim=clip_range.H6", runs, tokens):
        page.goto(place)
        again = visit(place)
        assert on.state(again) == on.state(page) == parse_qs(urlsplit(place).fragment)
        assert on.saved(again, "CSV") == on.saved(page, "CSV")
        assert on.pressed(again) == on.pressed(page)
    again = visit(f"{address}#tab=none&zoom=a&zoom=2&step=x&colour=loud&metric=none&run=none&study=none&off=none")
    assert again.locator("button.claim").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_wide_and_narrow_by_day_and_by_night(visit, address, scheme, width):
    page = visit(address, width, color_scheme=scheme)
    red = page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])")
    assert red < 64 if scheme == "dark" else red > 192
    page.locator("button.claim").first.click()
    assert page.evaluate(on.WIDE) == []
    for name in ("Curves", "Runs", "Tokens", "Report"):
        on.tab(page, name)
        if name == "Runs":
            page.locator(".runs tbody tr").first.click()
        page.wait_for_timeout(100)
        assert page.evaluate(on.WIDE) == [], name
    page.get_by_role("button", name="?", exact=True).click()
    box = page.locator("dialog.help").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_without_javascript_the_text_and_the_pictures_are_there(visit, address):
    page = visit(address, java_script_enabled=False)
    assert page.locator("#look").is_hidden()
    assert page.get_by_role("heading", name=STUDY).first.is_visible()
    assert "H6 is " in page.locator("#text").inner_text()
    assert page.locator("figure img").last.bounding_box()["width"] > 300


def test_the_report_is_a_tab_and_what_is_printed(visit, address):
    page = visit(address)
    on.tab(page, "Report")
    page.locator("#text nav a").last.click()
    assert page.locator("#text").is_visible()
    assert page.locator("#look .bar").is_visible()
    on.tab(page, "Answer")
    assert page.locator("#text").is_hidden()
    page.emulate_media(media="print")
    assert page.locator("#look").is_hidden()
    assert page.locator("#text figure img").last.is_visible()


def test_hostile_names_are_shown_as_they_are(visit, tmp_path):
    """A variant, a task, a question, a hypothesis and completions that would be markup, and are very long."""
    long, task = HOSTILE + "x" * 100_000, f"{HOSTILE}task"
    claim = HYPOTHESES[0] | {"says": long, "contrast": {"of": long, "minus": "symmetric"}}
    factors = {"clip": ["symmetric", long], "task": [task]}
    results = write_study(tmp_path, STUDY, factors, seeds=1, question=long, hypotheses=[claim])
    completion = [long[at : at + 50] for at in range(0, len(long), 50)]
    write_samples(results.run(cells_of(results)[0]["signature"]), 0, {HOSTILE: [completion, [HOSTILE]]})
    page = visit(
        study_pages.write_numbers(study_pages.document_of(results), tmp_path / "page.html", f"# {HOSTILE}\n"), width=390
    )

    def texts(where: str) -> list[str]:
        assert page.evaluate(on.WIDE) == [], where
        return page.locator(where).all_text_contents()

    assert texts("#look .question") == [long]
    assert texts("button.claim .says") == [long.replace("`", "")]  # its words are Markdown
    page.locator("button.claim").click()  # no look has been reached
    assert texts(".evidence .dots circle title")[0].endswith("(before the first look)")
    on.tab(page, "Curves")
    assert texts(".panel h3") == [task]
    legend = page.locator(".legend button").nth(1)
    assert legend.text_content() == long
    legend.click()
    assert on.state(page)["off"] == [long]
    on.tab(page, "Runs")
    assert texts(".runs tbody th") == ["symmetric", long]
    page.locator(".runs tbody tr").nth(1).click()
    assert texts("article.run h2") == [f"{long}, {task}, seed 0"]
    on.tab(page, "Tokens")
    assert texts(".group .prompt") == [HOSTILE]
    assert texts(".group li .text") == [long, HOSTILE]
    assert page.locator(".behind table").first.locator("tbody tr").count() == 200
    ElementTree.fromstring(on.saved(page, "SVG"))
    assert {row["prompt"] for row in on.saved_rows(page)} == {HOSTILE}
    on.tab(page, "Report")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#look script, #look img, #text script, #text img").count() == 0


@pytest.mark.slow
def test_a_page_of_2155_runs_opens_in_three_seconds_and_changes_its_metric_in_a_third(visit, tmp_path, monkeypatch):
    monkeypatch.setattr(report_results, "ROLLOUT_STEPS", 20)
    results = write_study(tmp_path, STUDY, FACTORS)
    file = tmp_path / "page.html"
    large = study_pages.multiplied(study_pages.document_of(results), 2155, 5)
    address = study_pages.write_numbers(large, file)
    assert file.stat().st_size < 12e6
    assert len(large["runs"]) >= 2155
    page = visit(address)
    opened = page.evaluate("async () => { await new Promise(requestAnimationFrame); return performance.now(); }")
    assert page.locator("button.claim").count()
    on.tab(page, "Curves")
    metrics = ["grad_norm", "reward/mean", "ratio/token_max", "entropy/behaviour", "loss", "clip/active_low"]
    changes = [page.evaluate(on.CHANGE, metric) for metric in metrics]
    assert page.locator(".metric b").inner_text() == metrics[-1]
    on.tab(page, "Runs")
    assert page.locator(".runs tbody tr").count() == 300
    page.get_by_role("button", name="show all").click()
    assert page.locator(".runs tbody tr").count() == len(large["runs"])
    size, times = file.stat().st_size / 1e6, ", ".join(f"{took:.0f}" for took in changes)
    print(f"{size:.1f} MB, {len(large['runs'])} runs: opens in {opened:.0f} ms, changes its metric in {times} ms")
    assert opened < 3000
    assert sorted(changes)[len(changes) // 2] < 300
