"""The linter's rules about a study: arms that are the same function, and confounded comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from grpolab.lint.rules import ONE_A_SEQUENCE, Rules, clip_range
from grpolab.quantities import GAINS
from grpolab.registry import SURROGATES
from grpolab.settings.equalities import AT_EQUAL_LENGTHS, EXACT, Equality, explain_equality, rewrite
from grpolab.settings.run import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS, REGIME_SEEDS, REGIMES, TUNING_SEEDS

LEAST_EVALUATIONS = 10  # of a run whose score is claimed: it is the mean of their last quarter
# A claim about one of these knows that steps differ in size.
STEP_SIZES = {"weights/step_norm", "grad_norm", "grad_norm_p50", "grad_norm_p99", "grad_norm_max"}
# Aggregations whose gradient is a mean's times something.
SCALES = {
    "sequence_sum": "the length of a completion",
    "sequence_sum_nonempty": "the length of a completion",
    "token_sum": "the tokens of a minibatch",
    "token_sum_constant": "the mean length over max_completion_length",
    "token_sum_length": "the tokens of a minibatch over max_completion_length",
}


@dataclass(frozen=True)
class Facet:
    """The arms of a study at the same levels of its other factors."""

    levels: dict[str, str]  # of the other factors
    arms: dict[str, RunSettings]

    @property
    def label(self) -> str:
        """`task=addition, regime=healthy`; empty if the study has one factor."""
        return ", ".join(f"{factor}={level}" for factor, level in self.levels.items())


@dataclass(frozen=True)
class LintedStudy:
    """A study, its seeds and its facets."""

    study: Study
    seeds: list[int]
    facets: list[Facet]

    @classmethod
    def of(cls, plan: Plan) -> LintedStudy:
        """Return the study of a plan that is no collection."""
        assert isinstance(plan.study, Study)
        study, tables = plan.study, dict[str, Facet]()
        for variant in plan.variants:
            levels = {factor: level for factor, level in variant.levels.items() if factor != study.compare}
            facet = tables.setdefault(str(levels), Facet(levels, {}))
            facet.arms.setdefault(variant.levels[study.compare], variant.settings)
        return cls(study, plan.seeds, list(tables.values()))


STUDY_RULES = Rules[LintedStudy]("A study")


@STUDY_RULES.rule("warning", "placebo")
def same_function(linted: LintedStudy) -> Iterator[str]:
    """Two arms are the same function, by their resolved settings and the equalities below, and the study neither lists
    them as a placebo nor claims that they are equal.
    """
    yield from _sentences(linted, _same_arms(linted, EXACT))


@STUDY_RULES.rule("warning", "task")
def same_at_equal_lengths(linted: LintedStudy) -> Iterator[str]:
    """Two arms differ only in how they average over lengths, and the task's right answers all have one length."""
    exact = _same_arms(linted, EXACT)
    pairs = _same_arms(linted, AT_EQUAL_LENGTHS)
    yield from _sentences(linted, {pair: reasons for pair, reasons in pairs.items() if pair not in exact})


def _same_arms(linted: LintedStudy, table: Sequence[Equality]) -> dict[tuple[str, str, str], str]:
    """Return why two arms are one function, by arms and facet; without those that the study declares equal."""
    claimed = [claim.arms for claim in linted.study.hypotheses if claim.direction == "equal"]
    declared = [set(pair) for pair in [*linted.study.placebo, *claimed]]
    pairs = {}
    for facet in linted.facets:
        seen: dict[str, str] = {}
        for arm, settings in facet.arms.items():
            first = seen.setdefault(str(rewrite(settings, table)), arm)
            if first != arm and {first, arm} not in declared:
                reasons = explain_equality(facet.arms[first], settings, table)
                pairs[first, arm, facet.label] = "; ".join(reasons or ["their settings are equal"])
    return pairs


def _sentences(linted: LintedStudy, pairs: dict[tuple[str, str, str], str]) -> Iterator[str]:
    facets_of = defaultdict[tuple[str, str, str], list[str]](list)
    for (first, second, facet), reasons in pairs.items():
        facets_of[first, second, reasons].append(facet)
    for (first, second, reasons), facets in facets_of.items():
        place = f" for {' and for '.join(facets)}" if len(facets) < len(linted.facets) else ""
        yield f"arms {first} and {second} are the same function{place}: {reasons}"


@STUDY_RULES.rule("error", "hypotheses")
def claim_about_equals(linted: LintedStudy) -> Iterator[str]:
    """A hypothesis claims a difference between two arms that are the same function in every combination it covers."""
    for claim in linted.study.hypotheses:
        asked = [facet for facet in linted.facets if claim.where.items() <= facet.levels.items()]
        facets = [facet.arms for facet in asked if set(claim.arms) <= facet.arms.keys()]
        for of, minus in pairwise(claim.arms) if claim.direction != "equal" else ():
            reasons = [explain_equality(settings[of], settings[minus]) for settings in facets]
            if reasons and None not in reasons:
                yield (
                    f"hypothesis {claim.id} claims that {of} and {minus} differ, which are the same function:"
                    f" {'; '.join(reasons[0] or ['equal settings'])}"
                )


@STUDY_RULES.rule("warning", "epsilon")
def one_epsilon_for_two_levels(linted: LintedStudy) -> Iterator[str]:
    """Token and sequence ratios are compared at the same clip range only, where they clip different shares of tokens:
    match the clip fraction, or give each level several ranges.
    """
    for facet in linted.facets:
        ranges = defaultdict[str, set[tuple[float, float]]](set)
        for settings in facet.arms.values():
            if SURROGATES[settings.kernel].bounds_the_ratio and not settings.ratio_is_one:
                level = "sequence" if settings.importance_sampling_level in ONE_A_SEQUENCE else "token"
                ranges[level].add(clip_range(settings))
        if len(ranges) > 1 and ranges["token"] == ranges["sequence"]:
            shown = ", ".join(f"{low:g}/{high:g}" for low, high in sorted(ranges["token"]))
            yield f"token and sequence ratios have the same clip ranges ({shown}), which clip different shares"
            return


@STUDY_RULES.rule("warning", "learning_rate")
def one_rate_for_two_scales(linted: LintedStudy) -> Iterator[str]:
    """Arms whose aggregations differ in the scale of the gradient have one learning rate. Differences may only reflect
    step size: AdamW cancels a constant gradient scale, but clipping by max_grad_norm reintroduces it. Arms that a
    hypothesis about step size names are exempt, and those whose learning rate the study tunes.
    """
    excused = {arm for claim in linted.study.hypotheses if claim.metric in STEP_SIZES for arm in claim.arms}
    tuning = linted.study.tuning
    excused |= {arm for arm in linted.facets[0].arms if tuning and "learning_rate" in tuning.space_of(arm)}
    for facet in linted.facets:
        scales_at = defaultdict[tuple[float, float], set[str]](set)
        for settings in facet.arms.values():
            scales_at[settings.learning_rate, settings.max_grad_norm].add(SCALES.get(settings.aggregation, ""))
        for arm, settings in facet.arms.items():
            rate, norm, scale = settings.learning_rate, settings.max_grad_norm, SCALES.get(settings.aggregation)
            if scale and arm not in excused and norm < float("inf") and len(scales_at[rate, norm]) > 1:
                excused.add(arm)  # one sentence an arm
                yield (
                    f"arm {arm} has gradients that are a mean's times {scale}, at the learning_rate={rate:g} and"
                    f" max_grad_norm={norm:g} of other arms"
                )


@STUDY_RULES.rule("warning", "max_optimizer_steps")
def reuse_costs_rollouts(linted: LintedStudy) -> Iterator[str]:
    """Arms with more updates per batch sample fewer completions, because the budget counts updates: reuse and
    less data are confounded.
    """
    for facet in linted.facets:
        budgets = sorted((run.updates_per_batch, run.planned_steps * run.batch_size) for run in facet.arms.values())
        for (few, completions), (many, left) in pairwise(budgets):
            if few < many and completions > left:
                yield (
                    f"{many} updates per batch get {left} completions and {few} get {completions}:"
                    " reuse and less data are one comparison"
                )
                return


@STUDY_RULES.rule("error", "seeds")
def seeds_of_two_uses(linted: LintedStudy) -> Iterator[str]:
    """Seeds have one use each: those below 900 explore, those below 1000 choose regimes (the study `regimes`, and it
    alone), those below 2000 tune, the others confirm what was registered before. A study that runs on the seeds that
    chose its learning rate is judged by what chose it.
    """
    choose, tune = range(REGIME_SEEDS, TUNING_SEEDS), range(TUNING_SEEDS, CONFIRMATION_SEEDS)
    seeds, tuning = set(linted.seeds), linted.study.tuning
    if linted.study.name == REGIMES:
        if others := seeds - set(choose):
            yield f"seeds={_listed(others)} do not choose regimes: {choose.start} to {choose.stop - 1} do"
    elif mixed := seeds & set(choose):
        yield f"seeds={_listed(mixed)} choose regimes: a study's are below {choose.start} or from {tune.stop} on"
    if mixed := seeds & set(tune):
        yield f"seeds={_listed(mixed)} are for tuning: a study's are below {choose.start} or from {tune.stop} on"
    if tuning and (others := set(tuning.seeds) - set(tune)):
        yield f"tuning.seeds={_listed(others)} are not for tuning: it has {tune.start} to {tune.stop - 1}"


def _listed(seeds: Iterable[int]) -> str:
    """Return `3, 5, 900 to 999`."""
    spans = list[list[int]]()
    for seed in sorted(seeds):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1].append(seed)
        else:
            spans.append([seed])
    return ", ".join(f"{span[0]} to {span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans)


@STUDY_RULES.rule("note", "seeds")
def no_look_yet(linted: LintedStudy) -> Iterator[str]:
    """Fewer seeds than the first look at the study's hypotheses asks for: all stay inconclusive."""
    if linted.study.hypotheses and len(linted.seeds) < linted.study.looks[0]:
        yield f"seeds={len(linted.seeds)} decide nothing: the first look is at {linted.study.looks[0]}"


@STUDY_RULES.rule("note", "evaluation.every")
def too_few_evaluations(linted: LintedStudy) -> Iterator[str]:
    """A score is claimed that is the mean of one or two evaluations: with the last three of ten or more, a difference
    takes about two thirds of the seeds.
    """
    claims = [claim.id for claim in linted.study.hypotheses if claim.metric in GAINS]
    counts = {1 + run.planned_steps // run.evaluation.every for facet in linted.facets for run in facet.arms.values()}
    if claims and min(counts) < LEAST_EVALUATIONS:
        yield f"runs have {min(counts)} evaluations, the first included, for {', '.join(claims)}: have 10 or more"
