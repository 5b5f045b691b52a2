"""Advantages among all rewards that a prompt has had: DCPO's smooth advantage standardization."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
import torch
from tiny import tiny_parts

from grpolab.frameworks.rewards import smoothed, with_visit
from grpolab.grpo.advantages import Scored, advantages, equal_rewards
from grpolab.grpo.metrics import rollout_metrics
from grpolab.grpo.prompts import prompt_index

Groups = list[list[float]]


def after_each_visit(visits: Groups, scale: str, epsilon: float = 0.0) -> Groups:
    """The advantages of a prompt's groups in turn."""
    so_far, found = None, []
    for group in visits:
        rewards_G = torch.tensor(group, dtype=torch.float32)
        so_far = with_visit(so_far, rewards_G, scale)
        own_G = advantages(Scored(rewards_G, torch.zeros(len(group)).long()), "group_mean", scale, epsilon)
        found.append(smoothed(own_G, rewards_G, torch.tensor([so_far] * len(group)), scale, epsilon).tolist())
    return found


# What lime-RL/DCPO 01787b0, `compute_dcpo_outcome_advantage`, returns for these rewards; without a std it is
# norm_adv_by_std_in_grpo=False.
VISITS: Groups = [[1, 0, 0, -1], [0, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]]
THEIRS: dict[str, Groups] = {
    "group": [[1.224745, 0, 0, -1.224745], [0] * 4, [0.714334, 0.714334, -0.754, 0.714334], [0.214855] * 4],
    "none": [[1, 0, 0, -1], [0] * 4, [0.416667, 0.416667, -0.416667, 0.416667], [0.140625] * 4],
}


@pytest.mark.parametrize("scale", THEIRS)
def test_advantages_are_those_of_dcpos_code(scale: str) -> None:
    assert np.array(after_each_visit(VISITS, scale)) == pytest.approx(np.array(THEIRS[scale]), abs=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_those_of_the_papers_equations(seed: int) -> None:
    """2509.02333, eq. 5 to 7 and 11, its statistics over all rewards as they are, with 1/n (eq. 29 and 30)."""
    visits = np.random.default_rng(seed).choice([-1.0, 0.0, 0.25, 1.0], (6, 4), p=[0.1, 0.2, 0.1, 0.6]).tolist()
    for i, found in enumerate(after_each_visit(visits, "group_population"), 1):
        group, total = visits[i - 1], [reward for visit in visits[:i] for reward in visit]
        for reward, advantage in zip(group, found, strict=True):
            new, cumulative = (
                (reward - statistics.fmean(among)) / (statistics.pstdev(among) or 1.0) for among in (group, total)
            )
            smooth_new, smooth_total = (i - 1) / i * new + cumulative / i, new / i + (i - 1) / i * cumulative
            assert advantage == pytest.approx(min(smooth_new, smooth_total, key=abs), abs=1e-6)


def test_rewards_that_were_always_equal_teach_nothing_and_those_that_are_missing_do_not_count() -> None:
    tenth = torch.tensor(0.1).item()  # a number that means round
    assert after_each_visit([[tenth] * 3] * 7, "group") == [[0.0] * 3] * 7
    rewards_G = torch.tensor([1.0, math.nan, 0.0])
    assert with_visit(None, rewards_G, "group") == with_visit(None, rewards_G[[0, 2]], "group") == [1, 2, 0.5, 0.5]
    nothing_G = torch.full((3,), math.nan)
    assert with_visit([1.0, 2.0, 0.5, 0.5], nothing_G, "group") == [1, 2, 0.5, 0.5]


def test_a_run_compares_a_prompt_with_its_earlier_visits_also_after_a_resume() -> None:
    size = len(tiny_parts().learner.collector.examples)
    parts = tiny_parts(advantage_history="smooth", prompts_per_step=size)
    collector, stream, policy = parts.learner.collector, parts.state.stream, parts.state.policy
    first, second = collector.rollout(policy, 0, stream), collector.rollout(policy, 1, stream)
    saved = collector.state_dict([second])
    collector.rollout(policy, 2, stream)  # what is known of the prompts goes on
    (again,) = collector.load_state_dict(policy, 1, saved)
    assert again.batch.advantages_B.equal(second.batch.advantages_B)
    visits: dict[int, Groups] = defaultdict(list)
    for rollout in (first, second):
        for place, group in zip(rollout.places, rollout.rewards_B.view(size, 4).tolist(), strict=True):
            visits[prompt_index(0, size, place)].append(group)
    of_second = [after_each_visit(visits[prompt_index(0, size, place)], "group", 1e-4)[1] for place in second.places]
    torch.testing.assert_close(second.batch.advantages_B.view(size, 4), torch.tensor(of_second))
    equal_P = equal_rewards(second.rewards_B.view(size, 4))
    assert second.batch.advantages_B.view(size, 4)[equal_P].any()
    for rollout, visited in ((first, 0.0), (second, 1.0)):
        log_probs_BT = rollout.batch.sampler_log_probs_BT
        found = rollout_metrics(rollout, rollout.batch.with_old(log_probs_BT, log_probs_BT), 4)
        nonzero = (rollout.batch.advantages_B != 0).double().mean().item()
        assert (found["prompts/again"], found["advantages/nonzero"]) == (visited, nonzero)
