"""A printed sentence of a hypothesis names what its test measured, and nothing else."""

from __future__ import annotations

import re

import pytest

from grpolab.paths import project_root
from grpolab.quantities import LABELS
from grpolab.sweep.study import Hypothesis, Study, load

# What words claim something about which metrics; a word that only names an arm (`without clipping`, `the upper clip`,
# `the range of the token ratio`) claims nothing.
SAYS: dict[str, set[str]] = {
    r"accuracy (?:at the \w+ learning rate )?(?:is|ends|below|varies)"
    r"|\bends? (?:lower|higher|equal|as high|at a lower|within)|trains? as"
    r"|to accuracy is|raises the accuracy": {"final_score", "mean_score", "gain"},
    r"(?<!DAPO )\bclips\b|clipped tokens|clip fraction|drops fewer tokens|\bbinds\b": {
        *("clip/active", "clip_share", "clip_change", "ceiling_share", "counterfactual_log_ratio"),
    },
    r"fluctuates": {"jitter"},
    r"\bentropy\b": {"entropy_first", "entropy_last", "entropy_last20", "entropy_slope", "entropy_drop"},
    r"\bgradient\b(?! spikes)": {"grad_norm_max", "grad_norm_p50", "grad_norm_p99", "clipped_gradients"},
    r"gradient spikes": {"spikes_per_100"},
    r"nearer|less near|as near|drift|moves the policy|the staleness": {"kl_ref", "kl_old"},
    r"largest (?:token |sequence )?ratio|range of token ratios|ratio of a longer|mean sequence ratio|tokens drift": {
        *("ratio_max", "sequence_ratio_max", "log_ratio_range", "sequence_sign_gap", "ratio/sequence_p99_pos"),
    },
    r"shortens|length of": {"length/mean", "length/wrong_mean", "length/wrong_p95"},
    r"collapse[,s]|diverge|are lost|loses more runs|collapsed run": {*LABELS, "starvation"},
    r"zero-variance groups": {"zero_variance/share", "zero_variance_gap", "starvation"},
    r"smaller step": {"weights/step_norm"},
    r"lower probability": {"up_clipped_gap"},
    r"\bmismatch\b": {"gap/k3"},
    r"more truncated answers": {"truncation/share"},
    r"right one among 256": {"eval/pass_at_256"},
    # Words that no test decides: a size without a number, and a cause.
    r"hardly|costs no|does not depend|a multiple of|is not health|which keeps|\bhides?\b|because": set(),
}
STUDIES = sorted(file.stem for file in (project_root() / "experiments").glob("*.yaml"))


def find_untested(sentence: str, metrics: set[str]) -> list[str]:
    """Return the words of a sentence that claim something about other metrics than these."""
    said = [(match[0], of) for words, of in SAYS.items() for match in re.finditer(words, sentence, re.IGNORECASE)]
    return [word for word, of in said if not of & metrics]


def metrics_of(claim: Hypothesis) -> set[str]:
    return {claim.metric} | ({claim.provided.metric} if claim.provided else set())


@pytest.mark.parametrize("name", STUDIES)
def test_a_sentence_names_only_what_its_test_has(name: str) -> None:
    study = load(name)
    for claim in study.hypotheses if isinstance(study, Study) else ():
        sentence = claim.tested or claim.says
        assert find_untested(sentence, metrics_of(claim)) == [], f"{name}.{claim.id}: {sentence}"
        named = [of for words, of in SAYS.items() if re.search(words, sentence, re.IGNORECASE)]
        assert any(claim.metric in of for of in named), f"{name}.{claim.id} does not say {claim.metric}: {sentence}"


def test_sentences_that_said_more_than_their_test_are_found() -> None:
    """The registered words of these claims; their pages say less."""
    found = {
        f"{name}.{claim.id}": find_untested(claim.says, metrics_of(claim))
        for name in STUDIES
        for study in [load(name)]
        for claim in (study.hypotheses if isinstance(study, Study) else ())
        if claim.tested
    }
    assert found["ratio_level.H3b"] == ["clips", "hardly"]
    assert "binds" in found["gspo_range.G_wide"]
    assert "gradient" in found["kl_estimators.K_k1_loss"]
    assert {"hardly", "hide", "a multiple of"} <= {word for words in found.values() for word in words}
