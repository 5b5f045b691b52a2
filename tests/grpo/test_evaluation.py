"""Exact expected accuracy is what sampling estimates; greedy accuracy is what greedy decoding gets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import teach, tiny_policy, tiny_settings

from grpolab.grpo.batch import decode, prompt_tensors
from grpolab.grpo.decoding import sample, sampling_noise
from grpolab.grpo.evaluation import Evaluator
from grpolab.grpo.loading import character_tokenizer
from grpolab.grpo.model import Policy
from grpolab.tasks import make_task
from grpolab.tasks.base import Task

FILLER = {"name": "filler_sorting", "length": 2, "max_fillers": 2, "corruption_base": 0.1, "corruption_per_filler": 0.1}


def evaluator_of(
    task: Task, items: int = 20, batch_size: int = 7, samples: int = 3, length: int = 4, reach: float | None = 512.0
) -> Evaluator:
    examples = task.examples("evaluation", items)
    tokenizer, device = character_tokenizer(task.alphabet), torch.device("cpu")
    return Evaluator(task, task.score, examples, tokenizer, device, False, reach, batch_size, samples, length, 0)


@pytest.fixture(scope="module")
def addition() -> Task:
    return make_task(tiny_settings().task)


@pytest.fixture(scope="module")
def taught(addition: Task) -> Policy:
    """A policy that is right now and then."""
    policy = tiny_policy()
    teach(policy, addition, 60)
    return policy


@pytest.fixture(scope="module")
def free() -> tuple[Task, Policy]:
    """A task of free length, and a policy that is right now and then."""
    task, policy = make_task(tiny_settings(task=FILLER).task), tiny_policy(task=FILLER)
    teach(policy, task, 60)
    return task, policy


def test_expected_accuracy_is_the_mean_over_many_samples(addition: Task, taught: Policy) -> None:
    found = evaluator_of(addition)(taught)
    exact_I = np.array(found.scores_I)
    assert found.metrics["eval/accuracy_expected"] == pytest.approx(exact_I.mean())
    assert 0.05 < exact_I.mean() < 0.95
    assert {len(example.answer) for example in addition.examples("evaluation", 20)} == {1, 2}
    samples = 1000
    prompts = [example.prompt for example in addition.examples("evaluation", 20)]
    tensors = prompt_tensors(taught.tokenizer, prompts, False, taught.device)
    drawn = sample(taught, tensors, samples, sampling_noise(5, "rollout", 0, 20, samples, 4))
    texts = decode(taught.tokenizer, drawn.tokens_BT, drawn.mask_BT)
    repeated = [example for example in addition.examples("evaluation", 20) for _ in range(samples)]
    right_IK = np.array([e.answer == t for e, t in zip(repeated, texts, strict=True)]).reshape(20, samples)
    error = np.sqrt((exact_I * (1 - exact_I)).sum() / samples) / 20
    assert abs(right_IK.mean() - exact_I.mean()) < 3 * error
    errors_I = np.sqrt(exact_I * (1 - exact_I) / samples)
    assert (np.abs(right_IK.mean(1) - exact_I) < 4.5 * errors_I + 2 / samples).all()


def test_greedy_accuracy_is_that_of_greedy_decoding(addition: Task, taught: Policy) -> None:
    found = evaluator_of(addition)(taught).metrics["eval/accuracy_greedy"]
    right = 0
    for example in addition.examples("evaluation", 20):
        ids = taught.tokenizer(example.prompt, add_special_tokens=False)["input_ids"]
        completion: list[int] = []
        while len(completion) < 4 and (not completion or completion[-1] != taught.end):
            with torch.no_grad():
                completion.append(int(taught.model(torch.tensor([ids + completion])).logits[0, -1].argmax()))
        right += taught.tokenizer.decode(completion, skip_special_tokens=True) == example.answer
    assert 0 < right < 20
    assert found == right / 20


def test_prompts_that_begin_alike_are_computed_once_and_each_item_keeps_its_score() -> None:
    task = make_task(tiny_settings(task={"name": "addition", "digits": 2}).task)
    policy = tiny_policy(task={"name": "addition", "digits": 2})
    teach(policy, task, 60)
    packed, plain = (evaluator_of(task, items=400, batch_size=128, reach=reach) for reach in (512.0, None))
    for texts, tree in packed._texts:
        assert tree is not None
        assert tree.tokens_RW.numel() < 0.8 * texts.tokens_BC[:, :-1].numel()
    assert all(tree is None for _, tree in plain._texts)
    scores_I = packed(policy).scores_I
    assert len(set(scores_I)) > 350
    assert scores_I == pytest.approx(plain(policy).scores_I, rel=1e-4, abs=0)
    alone = replace(plain, examples_I=[plain.examples_I[7]])
    assert alone(policy).scores_I == pytest.approx([scores_I[7]], rel=1e-4, abs=0)


def test_sampled_evaluation_where_many_answers_are_right(free: tuple[Task, Policy]) -> None:
    task, policy = free
    evaluate = evaluator_of(task, items=16, samples=8, length=6)
    found, again = evaluate(policy), evaluate(policy)
    assert found == again
    metrics = found.metrics
    assert metrics["eval/accuracy_expected"] == pytest.approx(np.mean(found.scores_I))
    assert metrics["eval/pass_at_k"] == np.mean([score > 0 for score in found.scores_I])
    assert 0 < metrics["eval/accuracy_expected"] < metrics["eval/pass_at_k"] <= 1
    assert 1 < metrics["eval/length_mean"] < 6
    assert metrics["eval/length_std"] > 0
    assert replace(evaluate, seed=1)(policy) != found
    single = replace(evaluator_of(task, items=1, samples=1, length=6), examples_I=evaluate.examples_I[:1])
    assert single(policy).metrics["eval/length_std"] == 0  # not NaN, which would be taken for divergence
