"""A prefix tree computes every distinct prefix once, and its log-probs and gradients are those of the plain forward."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import gradient_of, records, run_folder, tiny_policy, tiny_settings
from torch import Tensor
from transformers import BloomConfig, Gemma2Config, MambaConfig, PreTrainedConfig, Qwen2Config
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from grpolab.errors import RequestError
from grpolab.grpo.batch import Completions, Prompts, TrainingBatch
from grpolab.grpo.loading import compile_updates, find_break_even
from grpolab.grpo.model import old_log_probs, token_log_probs
from grpolab.grpo.step import LearnerState, make_optimizer
from grpolab.paths import Results
from grpolab.registry import FRAMEWORKS, SURROGATES
from grpolab.run.assembly import assemble
from grpolab.run.train import run
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

REACH = 512.0
TASKS = ("addition", "sorting", "filler_sorting")


def batch_of(generator: np.random.Generator, group: int = 8, T: int = 5) -> TrainingBatch:
    """Three prompts of 1 to 4 tokens; completions of 1 to T tokens over three letters, so that prefixes coincide."""
    tokens_PL = torch.from_numpy(generator.integers(4, 7, (3, 4)))
    mask_PL = torch.arange(4) >= 4 - torch.from_numpy(generator.integers(1, 5, 3))[:, None]
    mask_BT = torch.arange(T) < torch.from_numpy(generator.integers(1, T + 1, 3 * group))[:, None]
    tokens_BT = torch.where(mask_BT, torch.from_numpy(generator.integers(4, 7, mask_BT.shape)), 0)
    completions = Completions(tokens_BT, mask_BT, torch.zeros(mask_BT.shape))
    prompt_of_B = torch.arange(3).repeat_interleave(group)
    return TrainingBatch.of(Prompts(torch.where(mask_PL, tokens_PL, 0), mask_PL), prompt_of_B, completions)


@pytest.mark.parametrize("seed", range(20))
def test_every_distinct_prefix_stands_in_the_tree_once_behind_its_own_ancestors(seed: int) -> None:
    generator = np.random.default_rng(seed)
    batch = batch_of(generator, group=16, T=int(generator.integers(2, 6)))
    batch = batch.rows(torch.from_numpy(generator.permutation(len(batch))))  # groups need not stand together
    tree, prompts = batch.with_trees(len(batch), REACH).tree, batch.prompts
    assert tree is not None
    assert prompts.mask_PL is not None
    place_of: dict[tuple[int, ...], int] = {}
    for row, length in enumerate(batch.mask_BT.sum(1).tolist()):
        prompt = int(batch.prompt_of_B[row])
        prompt_tokens = prompts.tokens_PL[prompt][prompts.mask_PL[prompt]].tolist()
        for t in range(length):
            place = int(tree.place_BC[row, 4 + t])
            r, w = divmod(place, tree.tokens_RW.shape[1])
            path_W = tree.attends_R1WW[r, 0, w].nonzero()[:, 0]
            expected = [*prompt_tokens, *batch.tokens_BT[row, :t].tolist()]
            assert tree.tokens_RW[r, path_W].tolist() == expected
            assert tree.positions_RW[r, path_W].tolist() == list(range(len(expected)))
            assert place_of.setdefault((prompt, *expected), place) == place
    assert len(set(place_of.values())) == len(place_of)
    inner = {prefix[:end] for prefix in place_of for end in range(2, len(prefix) + 1)}
    used_RW = tree.attends_R1WW[:, 0].sum(-1) > 1
    assert used_RW.sum() <= len(inner) <= tree.tokens_RW.numel()


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_log_probs_entropies_and_gradients_are_those_of_each_completion_by_itself(seed: int, entropy: bool) -> None:
    policy, batch = tiny_policy(), batch_of(np.random.default_rng(seed))
    with torch.no_grad():
        policy.model.lm_head.weight *= 20
    weight_BT = torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(seed)) * batch.mask_BT
    results: list[tuple[Tensor, Tensor, Tensor]] = []
    for break_even in (None, REACH):
        log_probs_BT, entropy_BT = token_log_probs(policy, batch.with_trees(len(batch), break_even), entropy)
        policy.model.zero_grad()
        ((log_probs_BT + entropy_BT if entropy else log_probs_BT) * weight_BT).sum().backward()
        results.append((log_probs_BT[batch.mask_BT], entropy_BT[batch.mask_BT], gradient_of(policy)))
    (plain_N, plain_entropy_N, plain_gradient), (tree_N, tree_entropy_N, tree_gradient) = results
    torch.testing.assert_close(tree_N, plain_N, rtol=0, atol=1e-5)
    torch.testing.assert_close(tree_entropy_N, plain_entropy_N, rtol=0, atol=1e-5)
    assert (tree_gradient - plain_gradient).norm() <= 1e-5 * plain_gradient.norm()


@pytest.mark.parametrize(
    ("task", "framework"),
    [
        *((task, None) for task in [*TASKS, "long_sorting", "written_addition"]),
        *zip(itertools.cycle(TASKS), FRAMEWORKS),  # a task decides about the tree, a framework about the loss
    ],
)
def test_an_update_is_that_of_the_plain_forward_for_every_task_and_framework_and_micro_batch(
    task: str, framework: str | None
) -> None:
    """Log-probs within 1e-5, loss and gradient as far as float32 allows; the ratios are not 1, so that clips act."""
    given = [f"task={task}", f"dialect={framework or 'null'}", "prompts_per_step=4", "num_generations=8", "seed=3"]
    small = ["model.hidden_size=32", "model.heads=2", "model.intermediate_size=64", "warm_start.max_steps=0"]
    settings = resolve_run(Composer().compose([*given, *small, "num_minibatches=1", "device=cpu"]))
    parts = assemble(settings)
    policy = parts.state.policy
    with torch.no_grad():
        policy.model.lm_head.weight *= 40  # sure enough that completions begin alike
    batch = parts.learner.collect(parts.state).batch
    assert batch.with_trees(len(batch), math.inf).tree is not None
    old_BT, entropy_BT = old_log_probs(policy, batch, len(batch))
    noise_BT = 0.3 * torch.randn(old_BT.shape, generator=torch.Generator().manual_seed(0))
    advantages_B = torch.linspace(-1, 1, len(batch))  # an untrained policy's are all 0
    batch = replace(batch, old_log_probs_BT=old_BT + noise_BT, old_entropy_BT=entropy_BT, advantages_B=advantages_B)
    before = {name: weight.detach().clone() for name, weight in policy.weights().items()}

    def updated(break_even: float | None, micro_batch_size: int) -> tuple[Tensor, float, Tensor]:
        """Log-probs, loss and gradient of an update."""
        policy.load_weights(before)
        policy.break_even = break_even
        learner = replace(parts.learner, settings=settings.model_copy(update={"micro_batch_size": micro_batch_size}))
        state = LearnerState(policy, make_optimizer(policy, settings), parts.state.stream)
        update = learner.update(state, batch.with_trees(micro_batch_size, break_even), int(batch.mask_BT.sum()))
        return update.inputs.log_probs_BT[batch.mask_BT], update.loss, gradient_of(policy)

    for micro_batch_size in (32,) if SURROGATES[settings.kernel].whole_minibatch else (32, 16, 4):
        log_probs_N, loss, gradient = updated(math.inf, micro_batch_size)
        plain_N, plain_loss, plain_gradient = updated(None, micro_batch_size)
        assert (log_probs_N - plain_N).abs().max() <= 1e-5
        assert loss == pytest.approx(plain_loss, rel=1e-4, abs=1e-6)
        assert plain_gradient.norm() > 0
        assert (gradient - plain_gradient).norm() <= 1e-4 * plain_gradient.norm()


SMALL = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LAYERS = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        (Qwen2Config(**LAYERS), True),
        (Gemma2Config(**LAYERS, head_dim=8), False),  # its windows are in a mask of its own, which ours would replace
        (BloomConfig(vocab_size=24, hidden_size=16, n_layer=2, n_head=2), False),  # infers distances from the mask
        (MambaConfig(vocab_size=24, hidden_size=16, num_hidden_layers=2, state_size=4), False),  # has no attention
    ],
    ids=["qwen2", "gemma2", "bloom", "mamba"],
)
def test_a_model_that_reads_no_tree_is_told_apart_by_its_own_log_probs(config: PreTrainedConfig, reads: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    policy = replace(tiny_policy(), model=model, break_even=None)
    assert (find_break_even(policy) is not None) == reads


@pytest.mark.slow
def test_compiled_updates_are_the_eager_ones_but_for_rounding_and_their_ratio_is_one(tmp_path: Path) -> None:
    """Two minibatches, so that the old log-probs are a forward of their own; other sizes compile nothing anew."""
    changes = {"rollout_steps": 3, "num_minibatches": 2, "num_generations": 32, "temperature": 0.05}
    model = {"name": "tiny", "hidden_size": 64, "layers": 1, "heads": 2, "intermediate_size": 256}
    outcomes = {}
    for name, compile_ in (("eager", None), ("compiled", True), ("again", True)):
        settings = tiny_settings(**changes, model=model, compile=compile_)
        results = Results.open(tmp_path / name)
        assert run(settings, results)["outcome"] == "completed"
        outcomes[name] = records(run_folder(settings, results))
    assert outcomes["again"] == outcomes["compiled"] != outcomes["eager"]
    for record, eager in zip(outcomes["compiled"][:4], outcomes["eager"][:4], strict=True):
        assert record.keys() == eager.keys()
    first = [next(record for record in records_ if record["kind"] == "update") for records_ in outcomes.values()]
    assert {record["ratio/token_max"] for record in first} == {1.0}
    assert first[1]["grad_norm"] == pytest.approx(first[0]["grad_norm"], rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_model_that_reads_no_tree_cannot_be_compiled() -> None:
    with pytest.raises(RequestError, match="compile=true: a model of kind llama reads no prefix trees"):
        compile_updates(replace(tiny_policy(), break_even=None))
