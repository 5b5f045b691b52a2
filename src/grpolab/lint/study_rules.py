"""The linter's rules about a study. docs/lint.md explains every rule.

They find arms that compute the same thing, comparisons that differ in more than one setting, and too few seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from grpolab.equalities import AT_EQUAL_LENGTHS, EXACT, Equality, explain_equality, rewrite
from grpolab.errors import listing
from grpolab.lint import rules
from grpolab.lint.rules import LintFinding, Rules
from grpolab.quantities import GAINS
from grpolab.settings.run import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS, REGIME_SEEDS, REGIMES, TUNING_SEEDS

STUDY_RULES: Rules = {
    "same-function": ("warning", "placebo"),
    "same-at-equal-lengths": ("warning", "task"),
    "claim-about-equals": ("error", "hypotheses"),
    "one-epsilon-for-two-levels": ("warning", "epsilon"),
    "one-rate-for-two-scales": ("warning", "learning_rate"),
    "reuse-costs-rollouts": ("warning", "max_optimizer_steps"),
    "seeds-of-two-uses": ("error", "seeds"),
    "no-look-yet": ("note", "seeds"),
    "too-few-evaluations": ("note", "evaluation.every"),
}
LEAST_EVALUATIONS = 10  # of a run with a claim about its score, which is the mean of their last quarter
# A claim about one of these metrics is about step size, so arms may differ in it.
STEP_SIZES = {"weights/step_norm", "grad_norm", "grad_norm_p50", "grad_norm_p99", "grad_norm_max"}
# Aggregations whose gradient is that of a mean times a factor -> the factor.
SCALES = {
    "sequence_sum": "the length of a completion",
    "sequence_sum_nonempty": "the length of a completion",
    "token_sum": "the tokens of a minibatch",
    "token_sum_constant": "the mean length over max_completion_length",
    "token_sum_length": "the tokens of a minibatch over max_completion_length",
}
Pair = tuple[str, str, str]  # two arms, and the facet in which they compute the same function
Facet = tuple[dict[str, str], dict[str, RunSettings]]  # levels of the other factors, and the arms at these levels


def check_plans(plans: Sequence[Plan]) -> list[LintFinding]:
    """Return the findings in studies and variants. A finding about a key that the study varies is only a note."""
    studies = [plan for plan in plans if isinstance(plan.study, Study)]
    findings = []
    for plan in studies:
        study_name = plan.study.name if len(studies) > 1 else ""
        points = [variant.settings.model_dump() for variant in plan.variants]
        varied = {key for key in points[0] if any(point[key] != points[0][key] for point in points)}
        variants_with = defaultdict[LintFinding, list[str]](list)
        for variant in plan.variants:
            for finding in rules.check_run(variant.composed):
                variants_with[finding].append(variant.variant)
        for finding, names in variants_with.items():
            place = "" if len(names) == len(plan.variants) else f"variant {listing(names, 1)}"
            severity = "note" if varied.intersection(finding.key.split()) else finding.severity
            where = ", ".join(filter(None, (study_name, place)))
            findings.append(replace(finding, severity=severity, where=where))
        findings += [replace(finding, where=study_name) for finding in check_study(plan)]
    return rules.by_severity(findings)


def check_study(plan: Plan) -> list[LintFinding]:
    """Return what the rules find in the study of a plan that is no collection, in the order of the rules."""
    assert isinstance(plan.study, Study)
    study, by_levels = plan.study, dict[str, Facet]()
    for variant in plan.variants:
        levels = {factor: level for factor, level in variant.levels.items() if factor != study.compare}
        _, arms = by_levels.setdefault(str(levels), (levels, {}))
        arms.setdefault(variant.levels[study.compare], variant.composed)
    facets = list(by_levels.values())
    exact, of_equal_lengths = (_find_equal_arms(study, facets, table) for table in (EXACT, AT_EQUAL_LENGTHS))
    approximate = {pair: reasons for pair, reasons in of_equal_lengths.items() if pair not in exact}
    sentences = {
        "same-function": _say_pairs(exact, len(facets)),
        "same-at-equal-lengths": _say_pairs(approximate, len(facets)),
        "claim-about-equals": _find_claims_about_equals(study, facets),
        "one-epsilon-for-two-levels": _find_shared_ranges(facets),
        "one-rate-for-two-scales": _find_shared_rates(study, facets),
        "reuse-costs-rollouts": _find_unequal_data(facets),
        "seeds-of-two-uses": _find_misused_seeds(study, set(plan.seeds)),
    }
    pairs = [(rule, sentence) for rule, found in sentences.items() for sentence in found]
    if study.hypotheses and len(plan.seeds) < study.looks[0]:
        pairs.append(("no-look-yet", f"seeds={len(plan.seeds)} decide nothing: the first look is at {study.looks[0]}"))
    claims = ", ".join(claim.id for claim in study.hypotheses if claim.metric in GAINS)
    least = min(1 + run.planned_steps // run.evaluation.every for _, arms in facets for run in arms.values())
    if claims and least < LEAST_EVALUATIONS:
        sentence = f"runs have {least} evaluations, the first included, for {claims}: have 10 or more"
        pairs.append(("too-few-evaluations", sentence))
    return rules.to_findings(STUDY_RULES, pairs)


def _find_equal_arms(study: Study, facets: Sequence[Facet], table: Sequence[Equality]) -> dict[Pair, str]:
    """Return the reason for each pair of arms that compute the same function, except pairs that the study declares."""
    claimed = [claim.arms for claim in study.hypotheses if claim.direction == "equal"]
    declared = [set(pair) for pair in [*study.placebo, *claimed]]
    pairs = {}
    for levels, arms in facets:
        label = ", ".join(f"{factor}={level}" for factor, level in levels.items())
        seen: dict[str, str] = {}
        for arm, settings in arms.items():
            first = seen.setdefault(str(rewrite(settings, table)), arm)
            if first != arm and {first, arm} not in declared:
                reasons = explain_equality(arms[first], settings, table)
                pairs[first, arm, label] = "; ".join(reasons or ["their settings are equal"])
    return pairs


def _say_pairs(pairs: dict[Pair, str], n_facets: int) -> Iterator[str]:
    facets_of = defaultdict[Pair, list[str]](list)
    for (first, second, facet), reasons in pairs.items():
        facets_of[first, second, reasons].append(facet)
    for (first, second, reasons), facets in facets_of.items():
        place = f" for {' and for '.join(facets)}" if len(facets) < n_facets else ""
        yield f"arms {first} and {second} are the same function{place}: {reasons}"


def _find_claims_about_equals(study: Study, facets: Sequence[Facet]) -> Iterator[str]:
    """Find hypotheses whose two arms compute the same function in every facet that the hypothesis covers."""
    for claim in study.hypotheses:
        covered = [arms for levels, arms in facets if claim.where.items() <= levels.items()]
        for of, minus in pairwise(claim.arms) if claim.direction != "equal" else ():
            reasons = [explain_equality(arms[of], arms[minus]) for arms in covered if set(claim.arms) <= arms.keys()]
            if reasons and None not in reasons:
                yield (
                    f"hypothesis {claim.id} claims that {of} and {minus} differ, which are the same function:"
                    f" {'; '.join(reasons[0] or ['equal settings'])}"
                )


def _find_shared_ranges(facets: Sequence[Facet]) -> Iterator[str]:
    """Find the first facet that compares token and sequence ratios at the same clip ranges only."""
    for _, arms in facets:
        ranges = defaultdict[bool, set[tuple[float, float]]](set)  # of sequence ratios, of token ratios
        for run in filter(rules.clips_ratios, arms.values()):
            ranges[run.importance_sampling_level in rules.ONE_A_SEQUENCE].add((run.epsilon, run.epsilon_above))
        if ranges and ranges[True] == ranges[False]:
            shown = ", ".join(f"{low:g}/{high:g}" for low, high in sorted(ranges[True]))
            yield f"token and sequence ratios have the same clip ranges ({shown}), which clip different shares"
            return


def _find_shared_rates(study: Study, facets: Sequence[Facet]) -> Iterator[str]:
    """Find arms whose gradient has another scale than that of other arms, at the same learning rate and clipping.

    Exempt are arms that a hypothesis about step size names, and those whose learning rate the study tunes.
    """
    exempt = {arm for claim in study.hypotheses if claim.metric in STEP_SIZES for arm in claim.arms}
    for _, arms in facets:
        exempt |= {arm for arm in arms if study.tuning and "learning_rate" in study.tuning.space_of(arm)}
        scales_at = defaultdict[tuple[float, float], set[str]](set)
        for run in arms.values():
            scales_at[run.learning_rate, run.max_grad_norm].add(SCALES.get(run.aggregation, ""))
        for arm, run in arms.items():
            rate, norm, scale = run.learning_rate, run.max_grad_norm, SCALES.get(run.aggregation)
            if scale and arm not in exempt and norm < float("inf") and len(scales_at[rate, norm]) > 1:
                exempt.add(arm)  # one sentence an arm
                yield (
                    f"arm {arm} has gradients that are a mean's times {scale}, at the learning_rate={rate:g} and"
                    f" max_grad_norm={norm:g} of other arms"
                )


def _find_unequal_data(facets: Sequence[Facet]) -> Iterator[str]:
    """Find the first facet whose arms with more updates per batch sample fewer completions."""
    for _, arms in facets:
        budgets = sorted((run.updates_per_batch, run.planned_steps * run.batch_size) for run in arms.values())
        for (few, completions), (many, fewer) in pairwise(budgets):
            if few < many and completions > fewer:
                yield (
                    f"{many} updates per batch get {fewer} completions and {few} get {completions}: reuse and less data"
                    " are one comparison"
                )
                return


def _find_misused_seeds(study: Study, seeds: set[int]) -> Iterator[str]:
    """Find seeds outside the range reserved for their use: exploring, choosing regimes, tuning or confirming."""
    choose, tune = range(REGIME_SEEDS, TUNING_SEEDS), range(TUNING_SEEDS, CONFIRMATION_SEEDS)
    allowed = f"a study's are below {REGIME_SEEDS} or from {CONFIRMATION_SEEDS} on"
    if study.name == REGIMES:
        if others := seeds - set(choose):
            yield f"seeds={_list(others)} do not choose regimes: {choose.start} to {choose.stop - 1} do"
    elif mixed := seeds & set(choose):
        yield f"seeds={_list(mixed)} choose regimes: {allowed}"
    if (mixed := seeds & set(tune)) and (study.hypotheses or mixed != seeds):  # a grid of rates decides nothing
        yield f"seeds={_list(mixed)} are for tuning: {allowed}"
    if study.tuning and (others := set(study.tuning.seeds) - set(tune)):
        yield f"tuning.seeds={_list(others)} are not for tuning: it has {tune.start} to {tune.stop - 1}"


def _list(seeds: Collection[int]) -> str:
    return listing([*map(str, sorted(seeds))], 3)
