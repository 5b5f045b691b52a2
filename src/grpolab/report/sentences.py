"""Sentences about the runs of a study, computed from the numbers: findings, and preconditions that are not met.

No data, no sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpolab.paths import Results
from grpolab.records import read_plan
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import at, by_setting, difference, means_after_first_step, measure, run_means
from grpolab.report.statistics.intervals import geometric_interval, share_interval, t_interval
from grpolab.report.statistics.tests import wilson
from grpolab.report.text import bounds, count, estimate, number, percent, signed
from grpolab.vocabulary import REGIMES

# Preconditions of an ablation: its baseline learns, clipping acts, training without clipping collapses.
TESTED = (REGIMES, "clip_range", "loss_type")  # studies
FREE_LENGTH = "filler_sorting"  # the task whose answers may have any length
LEAST_GAIN, LEAST_CLIPPED, LEAST_LENGTH_STD = 0.1, 0.01, 1.0  # docs/regimes.md says why


def findings(study: StudyRuns) -> list[str]:
    """Return all sentences that this study's factors and runs allow."""
    if study.done.empty:
        return ["No run of this study has a result yet."]
    makers = (_baseline_learns, _baseline_clips, _clip_is_zero, _reuse, _ratio_levels, _unclipped, _against_baseline)
    return [sentence for maker in makers for sentence in maker(study)]


def _in(facet: str) -> str:
    return f" in {facet}" if facet else ""


def _baseline_learns(study: StudyRuns) -> Iterator[str]:
    """Say whether the baseline learns: if it does not, arms differ by noise."""
    for facet in study.facets:
        gain = t_interval(at(measure(study, "gain"), facet, study.baseline))
        if gain.n:
            loses = f"loses {study.score_name}" if gain.high < 0 else "is not shown to learn"
            size = f"{estimate(*gain[:3], signed)} over its start ({count(gain.n, 'seed')})"
            yield f"The baseline `{study.baseline}` {'learns' if gain.low > 0 else loses}{_in(facet)}: {size}."


def _baseline_clips(study: StudyRuns) -> Iterator[str]:
    """Say what share of tokens the baseline clips on each side.

    Below about 1% a side, arms that differ in the clip range alone can hardly differ.
    """
    shares = [means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high")]
    for facet in study.facets:
        sides = [share_interval(at(values, facet, study.baseline)) for values in shares]
        if sides[0].n:
            below, above = (estimate(*side[:3], percent) for side in sides)
            yield (
                f"After the first optimiser step on a batch, of the tokens with an advantage clipping in"
                f" `{study.baseline}` silences {below} at the lower bound and {above} at the upper one{_in(facet)}."
            )


def _clip_is_zero(study: StudyRuns) -> Iterator[str]:
    """Say that the clip fraction is 0 before the first optimiser step on a batch, where every ratio is 1."""
    updates, cells = study.updates, study.done
    if not {"clip/out_of_range", "iteration", "minibatch"} <= set(updates):
        return
    once = cells[cells["setting/num_iterations"] * cells["setting/num_minibatches"] == 1]
    arms = ", ".join(f"`{arm}`" for arm in dict.fromkeys(once["arm"]))
    cases = {
        "At the first update on a batch": updates[(updates["iteration"] == 0) & (updates["minibatch"] == 0)],
        f"With one update per batch ({arms})": updates[updates["signature"].isin(once["signature"])],
    }
    for where, here in cases.items():
        share = here["clip/out_of_range"]
        size = f"{count(len(here), 'update')} of {count(here['signature'].nunique(), 'run')}"
        value = f"not 0 in {(share != 0).sum():,} of {size} (largest {number(share.max())})"
        if len(here):
            yield f"{where} the clip fraction is {f'exactly 0 in all {size}' if (share == 0).all() else value}."


def _reuse(study: StudyRuns) -> Iterator[str]:
    """Give clip fraction and final accuracy by num_iterations."""
    for metric, words in (("clip/active", "The clip fraction"), ("final_score", "Final accuracy")):
        for facet in study.facets:
            values_SL = by_setting(study, measure(study, metric), facet, "setting/num_iterations")
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
    for facet in study.facets:
        for arm in study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"].unique():
            rates = []
            for lost in (at(measure(study, "lost"), facet, name) for name in (arm, study.baseline)):
                if len(lost):
                    interval = bounds(*wilson(int(lost.sum()), len(lost))[1:3])
                    rates.append(f"{int(lost.sum())} of {count(len(lost), 'run')} (95%: {interval})")
            if len(rates) == 2:
                yield f"Without clipping (`{arm}`), {rates[0]} are lost{_in(facet)}; of `{study.baseline}`, {rates[1]}."


def _against_baseline(study: StudyRuns) -> Iterator[str]:
    """Say how far every arm ends from the baseline, in accuracy and in entropy."""
    for metric, words in (("final_score", f"Final {study.score_name}"), ("entropy_last", "Entropy at the end")):
        values = measure(study, metric)
        for facet in study.facets:
            others = [arm for arm in study.arms if arm != study.baseline]
            pairs = {arm: difference(study, values, facet, arm, study.baseline) for arm in others}
            ranked = sorted((arm for arm in others if pairs[arm].n), key=lambda arm: -pairs[arm].effect)
            if ranked:
                mean = number(at(values, facet, study.baseline).mean())
                listed = ", ".join(f"`{arm}` {estimate(*pairs[arm][:3], signed)}" for arm in ranked)
                yield f"{words}{_in(facet)}: `{study.baseline}` {mean}; against it {listed}."


def find_unmet(studies: Sequence[StudyRuns]) -> list[str]:
    """Return a sentence for each precondition of docs/regimes.md that runs fail, with its consequence."""
    return [
        f"{condition} NOT met: in {facet} {measured}; {consequence}."
        for study in studies
        if study.name in TESTED
        for facet in study.facets
        for condition, measured, consequence in _unmet_in(study, facet)
    ]


def find_unmet_of(results: Results, name: str) -> list[str]:
    """Return `find_unmet` of a study that is planned here, or of those that it includes. Raises RequestError."""
    plan = read_plan(results.plan(name)) or {"includes": []}
    return find_unmet([load(results, part)[-1] for part in (*plan["includes"], name) if part in TESTED])


def _unmet_in(study: StudyRuns, facet: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, what was measured, and the consequence of each precondition that is not met in a facet."""
    base, cells = study.baseline, study.cells[study.cells["facet"] == facet]
    if (unclipped := study.cells["setting/kernel"] == "ratio").any():
        arm = study.cells.loc[unclipped, "arm"].iloc[0]
        if "factor/regime" in cells and not (cells["factor/regime"] == "healthy").all():
            lost, lost_base = (at(measure(study, "lost"), facet, of) > 0 for of in (arm, base))
            if len(lost) and len(lost_base) and not (lost.all() and not lost_base.any()):
                of_base = f"{int(lost_base.sum())} of {len(lost_base)} of `{base}`"
                measured = f"{int(lost.sum())} of {count(len(lost), 'run')} of `{arm}` and {of_base} are lost"
                consequence = "conclusions there about no clipping are not about a stressed regime"
                yield 3, f"{measured} (asked: all, and none)", consequence
            return
        gain = t_interval(at(measure(study, "gain"), facet, base))
        if gain.n and not (gain.mean >= LEAST_GAIN and gain.low > 0):
            gains = f"the baseline `{base}` gains {estimate(*gain[:3], signed)} ({count(gain.n, 'seed')}"
            consequence = "the baseline is not shown to learn there, so differences may be noise"
            yield 1, f"{gains}; asked: {LEAST_GAIN} or more, the interval above 0)", consequence
        sides = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
        low, high = (float(at(shares, facet, base).mean()) for shares in sides)
        if min(low, high) < LEAST_CLIPPED:
            shares = f"{percent(low)} of the tokens below its range and {percent(high)} above"
            measured = f"clipping in `{base}` silences {shares} (asked: {LEAST_CLIPPED:.0%} each)"
            yield 2, measured, "clip ranges that hardly act there are one arm under several names"
    if (cells["setting/task"] == FREE_LENGTH).all() and "eval/length_std" in study.evaluations:
        evaluations = study.evaluations[(study.evaluations["facet"] == facet) & (study.evaluations["arm"] == base)]
        last = evaluations.sort_values("rollout_step").groupby("signature")["eval/length_std"].last().astype("float64")
        if (last <= LEAST_LENGTH_STD).any():
            spread = f"{number(last.min())} to {number(last.max())} tokens at the end of {count(len(last), 'run')}"
            measured = f"lengths of `{base}` have standard deviations of {spread} (asked: above {LEAST_LENGTH_STD:.0f})"
            yield 4, measured, "claims about length are void where all lengths are the same"
