"""Writes peers.tar.xz anew from the archive of peer vectors: `python tests/vectors/make_compact.py ARCHIVE`.

A small set that still has every function of every framework, and each of its ways at least once.
"""

from __future__ import annotations

import fnmatch
import io
import sys
import tarfile
from pathlib import Path

COMPACT = Path(__file__).with_name("peers.tar.xz")
CHOSEN = (
    "deepspeed_chat__*",
    # TRL: each loss_type, both levels, delta, KL, accumulation, masks, entropy, sampler's weights, advantages
    "trl__grpo__token__asym__beta0.04",
    "trl__grpo__sequence__delta2__beta0.0",
    "trl__grpo__token__delta1.1_below_eps__beta0.0",
    "trl__grpo__token__sym__beta0.04__no_bias_correction",
    "trl__grpo__token__sym__beta0.0__*",
    "trl__bnpo__token__sym__beta0.0",
    "trl__dr_grpo__token__sym__beta0.0__maxlen512",
    "trl__dapo__token__sym__beta0.0__*",
    "trl__cispo__*__sym__beta0.04",
    "trl__cispo__token__eps_high5__beta0.0",
    "trl__sapo__token__tau2_3__beta0.0",
    "trl__vespo__token__sym__beta0.0",
    "trl__luspo__sequence__asym__beta0.0",
    "trl__vllm_is__sequence_mask__min0.95_max1.05",
    "trl__vllm_is__token_truncate__minNone_max1.05",
    "trl__adv__*",
    # ROLL
    "roll__rlvr__token__asym__dual1__token-mean",
    "roll__rlvr__seq__asym__dual0__seq-mean-token-mean",
    "roll__rlvr__seq__sym__dual1__seq-mean-token-sum-norm",
    "roll__rlvr__token__kl_entropy__token-mean",
    "roll__base__token__sym__dual0__token-mean",
    "roll__agentic__segment__asym__dual1__seq-mean-token-mean",
    "roll__pg__*__token-mean",
    "roll__kl__k3",
    "roll__adv__mean_group__std_batch__whiten1",
    # verl
    "verl__vanilla__asym__c3.0__token-mean",
    "verl__vanilla__sym__c2.0__token-mean",
    "verl__gspo__asym",
    "verl__cispo__asym__token-mean",
    "verl__sapo__tau2_3",
    "verl__geo_mean__rollout_is_weights",
    "verl__gpg__token-mean",
    "verl__dro__beta0.1__token-mean",
    "verl__clip_cov__sym__all_eligible__token-mean",
    "verl__kl_cov__frac0.3_coef1__token-mean",
    "verl__dppo_*__token-mean",
    "verl__bypass__reinforce_seq_is",
    "verl__ppo_loss__gspo__token-sum",
    "verl__rollout_rs__token_k1",
    "verl__rollout_is__sequence__0.5to2.0__bn1",
    "verl__adv__grpo__std1",
    "verl__adv__rloo",
    "verl__adv__reinforce_plus_plus__gamma0.9",
    "verl__adv__gae__g1_l0.95",
    "verl__adv__optimal_token_baseline",  # not reproduced, and said so
    "verl__kl__k3plus",
    "verl__agg_loss__*__global",
    # the other eight
    "openrlhf__gspo__rollout_ratio",
    "openrlhf__ppo__sym__seq-mask-tis",
    "openrlhf__ppo__asym__tokenlevel0__dual3.0",
    "openrlhf__kl__k3",
    "openrlhf__adv__reinforce",
    "slime__gspo__sym__pertoken1",
    "slime__grpo__klloss_low_var_kl__unbiased1",
    "slime__grpo__opsm0.05",
    "slime__adv__grpo__std1",
    "areal__ppo__sequence__asym__c2.0",
    "areal__decoupled__token_mask_ratio1.04",
    "areal__sapo__token",
    "areal__adv__grpo_group_group",
    "nemo_rl__ppo__kl_k3__onpolicyapprox0",
    "nemo_rl__gspo__asym__c3.0",
    "nemo_rl__adv__grpo__loo1__norm1",
    "open_instruct__dapo__default",
    "open_instruct__cispo__default",
    "open_instruct__dapo__rho_clamp1.04",
    "prime_rl__default",
    "prime_rl__ipo",
    "skyrl__regular__asym__sequence_mean",
    "skyrl__gspo__sym__prompt_mean",
    "skyrl__cispo__token_mean",
    "skyrl__adv__grpo__std1",
    "torchtune__GRPOLoss__kl0.04",
)


def main(archive: Path) -> None:
    """Copy the chosen variants, in order and without dates, so that the same archive gives the same bytes."""
    with tarfile.open(archive) as whole, tarfile.open(COMPACT, "w:xz", preset=9) as compact:
        texts = {}
        for member in whole:
            stem = Path(member.name).stem
            file = whole.extractfile(member)
            if file is not None and any(fnmatch.fnmatchcase(stem, pattern) for pattern in CHOSEN):
                texts[stem] = file.read()
        for stem in sorted(texts):
            entry = tarfile.TarInfo(f"{stem}.json")
            entry.size = len(texts[stem])
            compact.addfile(entry, io.BytesIO(texts[stem]))
    print(f"{COMPACT}: {len(texts)} variants, {COMPACT.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
