"""Exact expected accuracy is what sampling estimates; greedy accuracy is what greedy decoding gets."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import teach, tiny_policy, tiny_settings

from grpolab.grpo.batch import decode, prompt_tensors
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.evaluation import Evaluator, pass_at
from grpolab.grpo.model import Policy
from grpolab.tasks import make_task
from grpolab.tasks.base import Task

FILLER = {"name": "filler_sorting", "length": 2, "max_fillers": 2, "corruption_base": 0.1, "corruption_per_filler": 0.1}


def evaluator_of(policy: Policy, task: Task, items: int = 20, batch_size: int = 7, samples: int = 3) -> Evaluator:
    return Evaluator(policy, task, task.score, task.examples("evaluation", items), batch_size, samples, 6, 0)


def taught(task: dict) -> tuple[Policy, Task]:
    """A policy that is right now and then, and its task."""
    policy, made = tiny_policy(task=task), make_task(tiny_settings(task=task).task)
    teach(policy, made, 60)
    return policy, made


@pytest.fixture(scope="module")
def addition() -> tuple[Policy, Task]:
    return taught({"name": "addition", "digits": 1})


def test_expected_accuracy_is_the_mean_over_many_samples(addition: tuple[Policy, Task]) -> None:
    policy, task = addition
    found = evaluator_of(policy, task)()
    exact_I, examples, samples = np.array(found.scores_I), task.examples("evaluation", 20), 1000
    assert found.metrics["eval/accuracy_expected"] == pytest.approx(exact_I.mean())
    assert 0.05 < exact_I.mean() < 0.95
    assert {len(example.answer) for example in examples} == {1, 2}
    prompts = prompt_tensors(policy.tokenizer, [example.prompt for example in examples], False, policy.device)
    drawn = sample(policy, prompts, samples, sampling_noise(5, "rollout", 0, 20, samples, 4))
    texts = decode(policy.tokenizer, drawn.tokens_BT, drawn.mask_BT)
    repeated = [example for example in examples for _ in range(samples)]
    right_IK = np.array([e.answer == t for e, t in zip(repeated, texts, strict=True)]).reshape(20, samples)
    errors_I = np.sqrt(exact_I * (1 - exact_I) / samples)
    assert abs(right_IK.mean() - exact_I.mean()) < 3 * np.sqrt((errors_I**2).sum()) / 20
    assert (np.abs(right_IK.mean(1) - exact_I) < 4.5 * errors_I + 2 / samples).all()


def test_greedy_accuracy_is_that_of_greedy_decoding(addition: tuple[Policy, Task]) -> None:
    policy, task = addition
    right = 0
    for example in task.examples("evaluation", 20):
        ids = policy.tokenizer(example.prompt, add_special_tokens=False)["input_ids"]
        completion: list[int] = []
        while len(completion) < 4 and (not completion or completion[-1] != policy.end):
            with torch.no_grad():
                completion.append(int(policy.model(torch.tensor([ids + completion])).logits[0, -1].argmax()))
        right += policy.tokenizer.decode(completion, skip_special_tokens=True) == example.answer
    assert 0 < right < 20
    assert evaluator_of(policy, task)().metrics["eval/accuracy_greedy"] == right / 20


def test_prompts_that_begin_alike_are_computed_once_and_each_item_keeps_its_score() -> None:
    policy, task = taught({"name": "addition", "digits": 2})
    packed, plain = (
        evaluator_of(replace(policy, break_even=break_even), task, 400, 128) for break_even in (512.0, None)
    )
    for texts, tree in packed._texts:
        assert tree is not None
        assert tree.tokens_RW.numel() < 0.8 * texts.tokens_BC[:, :-1].numel()
    assert all(tree is None for _, tree in plain._texts)
    scores_I = packed().scores_I
    assert len(set(scores_I)) > 350
    assert scores_I == pytest.approx(plain().scores_I, rel=1e-4, abs=0)
    alone = replace(plain, examples_I=[plain.examples_I[7]])
    assert alone().scores_I == pytest.approx([scores_I[7]], rel=1e-4, abs=0)


def test_pass_at_k_is_exact_where_one_answer_is_right() -> None:
    evaluate = evaluator_of(*taught({"name": "addition", "digits": 2}), items=50)
    found = replace(evaluate, samples=64)()
    assert {name: found.metrics[name] for name in evaluate().metrics} == evaluate().metrics, "nothing else changes"
    assert found.metrics.keys() - evaluate().metrics.keys() == {f"eval/pass_at_{k}" for k in (4, 16, 64)}
    missed_I = 1 - np.array(found.scores_I)
    assert found.metrics["eval/pass_at_16"] == pytest.approx(1 - np.mean(missed_I**16))


def test_sampled_evaluation_where_many_answers_are_right() -> None:
    evaluate = evaluator_of(*taught(FILLER), items=16, samples=8)
    found = evaluate()
    assert found == evaluate()
    assert found != replace(evaluate, seed=1)()
    metrics = found.metrics
    assert metrics["eval/accuracy_expected"] == pytest.approx(np.mean(found.scores_I))
    assert metrics["eval/pass_at_k"] == np.mean([score > 0 for score in found.scores_I])
    assert 0 < metrics["eval/accuracy_expected"] < metrics["eval/pass_at_k"] <= 1
    assert 1 < metrics["eval/length_mean"] < 6
    assert metrics["eval/length_std"] > 0
    single = replace(evaluate, samples=1, examples_I=evaluate.examples_I[:1])
    assert single().metrics["eval/length_std"] == 0  # not NaN, which would be taken for divergence


def test_pass_at_k_of_samples_is_the_mean_over_all_choices_of_k() -> None:
    """Chen et al., eq. 1: of n completions, c right, the share of k-subsets with a right one."""
    for samples, counts_I in ((6, [0, 1, 3, 6]), (9, [2, 2])):
        for k in range(1, samples + 1):
            subsets = [list(itertools.combinations([1] * c + [0] * (samples - c), k)) for c in counts_I]
            expected = np.mean([np.mean([any(subset) for subset in of_item]) for of_item in subsets])
            assert pass_at(k, samples, counts_I) == pytest.approx(expected)


def test_a_sampled_evaluation_has_pass_at_each_k_and_the_vote_where_answers_can_be_counted() -> None:
    evaluate = evaluator_of(*taught(FILLER), items=16, samples=8)
    metrics = evaluate().metrics
    assert {name for name in metrics if "at_" in name} == {"eval/pass_at_4", "eval/pass_at_k"}
    assert metrics["eval/accuracy_expected"] < metrics["eval/pass_at_4"] < metrics["eval/pass_at_k"]
    assert "eval/pass_at_4" not in replace(evaluate, samples=3)().metrics
    counted = copy.copy(evaluate.task)
    counted.final_answer = lambda text: text.lstrip("~")  # type: ignore[attr-defined]
    assert 0 < replace(evaluate, task=counted)().metrics["eval/maj_at_k"] <= metrics["eval/pass_at_k"]
    assert "eval/maj_at_k" not in replace(evaluate, task=counted, samples=1)().metrics
