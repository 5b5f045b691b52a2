"""Sentences about the runs of a study, computed from the numbers. No data, no sentence."""

from __future__ import annotations

from collections.abc import Iterator

from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, by_setting, difference, means_after_first_step, measure, run_means
from grpolab.report.statistics.intervals import geometric_interval, share_interval, t_interval
from grpolab.report.statistics.tests import wilson
from grpolab.report.text import bounds, count, estimate, number, percent, signed


def findings(study: StudyRuns) -> list[str]:
    """Return all sentences that this study's factors and runs allow."""
    if study.done.empty:
        return ["No run of this study has a result yet."]
    makers = (_baseline_learns, _clipping_acts, _clip_is_zero, _reuse, _ratio_levels, _unclipped, _against_baseline)
    return [sentence for maker in makers for sentence in maker(study)]


def _in(facet: str) -> str:
    return f" in {facet}" if facet else ""


def _baseline_learns(study: StudyRuns) -> Iterator[str]:
    """Say whether the baseline learns: if it does not, arms differ by noise."""
    gains = measure(study, "gain")
    for facet in study.facets:
        gain = t_interval(at(gains, facet, study.baseline))
        if gain.n:
            verdict = (
                "learns" if gain.low > 0 else f"loses {study.score_name}" if gain.high < 0 else "is not shown to learn"
            )
            size = f"{estimate(*gain[:3], signed)} over its start ({count(gain.n, 'seed')})"
            yield f"The baseline `{study.baseline}` {verdict}{_in(facet)}: {size}."


def _clipping_acts(study: StudyRuns) -> Iterator[str]:
    """Say how much the baseline clips: below about 1% a side, arms that differ in the clip range are the same arm."""
    low, high = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
    for facet in study.facets:
        sides = [share_interval(at(values, facet, study.baseline)) for values in (low, high)]
        if sides[0].n:
            below, above = (estimate(*side[:3], percent) for side in sides)
            yield (
                f"After the first optimiser step on a batch, clipping in `{study.baseline}` silences {below} of the"
                f" tokens with an advantage below its range and {above} above it{_in(facet)}."
            )


def _clip_is_zero(study: StudyRuns) -> Iterator[str]:
    """Say that the clip fraction is 0 before the first optimiser step on a batch, where every ratio is 1."""
    if not {"clip/out_of_range", "iteration", "minibatch"} <= set(study.updates):
        return
    first = study.updates[(study.updates["iteration"] == 0) & (study.updates["minibatch"] == 0)]
    cells = study.done
    once = cells[cells["setting/num_iterations"] * cells["setting/num_minibatches"] == 1]
    updates_of_once = study.updates[study.updates["signature"].isin(once["signature"])]
    cases = {"At the first update on a batch": first}
    if len(updates_of_once):
        arms = ", ".join(f"`{arm}`" for arm in dict.fromkeys(once["arm"]))
        cases[f"With one update per batch ({arms})"] = updates_of_once
    for where, updates in cases.items():
        share = updates["clip/out_of_range"]
        size = f"{count(len(updates), 'update')} of {count(updates['signature'].nunique(), 'run')}"
        value = f"not 0 in {(share != 0).sum():,} of {size} (largest {number(share.max())})"
        yield f"{where} the clip fraction is {f'exactly 0 in all {size}' if (share == 0).all() else value}."


def _reuse(study: StudyRuns) -> Iterator[str]:
    """Give clip fraction and final accuracy by num_iterations."""
    for metric, words in (("clip/active", "The clip fraction"), ("final_score", "Final accuracy")):
        values = measure(study, metric)
        for facet in study.facets:
            values_SL = by_setting(study, values, facet, "setting/num_iterations")
            if values_SL.shape[1] > 1:
                means = ", ".join(number(mean) for mean in values_SL.mean())
                passes = ", ".join(f"{mu:g}" for mu in values_SL)
                yield f"{words} is {means} at num_iterations {passes}{_in(facet)}."


def _ratio_levels(study: StudyRuns) -> Iterator[str]:
    """Compare token and sequence clipping as factors: the arms' own rules, then both levels on the same runs."""
    if study.cells["setting/importance_sampling_level"].nunique() < 2:
        return
    clip = run_means(study, "clip/active")
    sequence, token = (run_means(study, f"cf/{level}_0.2") for level in ("sequence", "token"))
    for facet in study.facets:
        for arm in study.arms:
            factor = geometric_interval(at(clip, facet, arm) / at(clip, facet, study.baseline))
            if arm != study.baseline and factor.n:
                size = estimate(*factor[:3])
                yield f"`{arm}` clips {size} times the share of tokens that `{study.baseline}` clips{_in(facet)}."
        factor = geometric_interval(at(sequence, facet, study.baseline) / at(token, facet, study.baseline))
        if factor.n:
            yield (
                f"On the same batches (of `{study.baseline}`), a sequence ratio at epsilon .2 would clip"
                f" {estimate(*factor[:3])} times what a token ratio clips{_in(facet)}."
            )


def _unclipped(study: StudyRuns) -> Iterator[str]:
    """Compare the lost runs without clipping with those of the baseline."""
    runs = measure(study, "lost")
    for facet in study.facets:
        for arm in study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"].unique():
            both = [at(runs, facet, name) for name in (arm, study.baseline)]
            if all(map(len, both)):
                rate, base = (
                    f"{int(lost.sum())} of {count(len(lost), 'run')}"
                    f" (95%: {bounds(*wilson(int(lost.sum()), len(lost))[1:3])})"
                    for lost in both
                )
                yield f"Without clipping (`{arm}`), {rate} are lost{_in(facet)}; of `{study.baseline}`, {base}."


def _against_baseline(study: StudyRuns) -> Iterator[str]:
    """Say how far every arm ends from the baseline, in accuracy and in entropy."""
    for metric, words in (("final_score", f"Final {study.score_name}"), ("entropy_last", "Entropy at the end")):
        values = measure(study, metric)
        for facet in study.facets:
            base = at(values, facet, study.baseline)
            pairs = {arm: difference(study, values, facet, arm, study.baseline) for arm in study.arms}
            others = [
                f"`{arm}` {estimate(*pair[:3], signed)}"
                for arm, pair in sorted(pairs.items(), key=lambda item: -item[1].effect)
                if arm != study.baseline and pair.n
            ]
            if others:
                mean = number(base.mean())
                yield f"{words}{_in(facet)}: `{study.baseline}` {mean}; against it {', '.join(others)}."
