"""Cut the peers' vectors down to what the tests need: `python tests/vectors/make_compact.py ARCHIVE`, see README.md."""

from __future__ import annotations

import itertools
import json
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).with_name("peers.json.xz")

LEVELS = ("token", "sequence")
ROLL_LEVELS = ("token", "seq")
LOSSES = (
    "deepspeed_chat__actor_loss_fn__eps0.2",
    "deepspeed_chat__actor_loss_fn__eps0.3",
    *(
        f"roll__rlvr__{level}__{clip}__dual0__{mode}"
        for level, clip, mode in itertools.product(ROLL_LEVELS, ("sym", "asym"), ("token-mean", "seq-mean-token-mean"))
    ),
    *(
        f"trl__{loss_type}__{level}__{clip}__beta0.0"
        for loss_type, level, clip in itertools.product(
            ("grpo", "dapo", "dr_grpo", "bnpo"), LEVELS, ("sym", "asym", "delta2")
        )
    ),
    *(f"trl__grpo__{level}__sym__beta0.04__no_bias_correction" for level in LEVELS),
    *(f"trl__grpo__{level}__delta1.1_below_eps__beta0.0" for level in LEVELS),
    *(f"trl__cispo__{level}__eps_high5__beta0.0" for level in LEVELS),
    "trl__grpo__token__sym__beta0.0__ga2",
    "trl__dapo__token__sym__beta0.0__ga2_spg4_items200",
    "trl__dr_grpo__token__sym__beta0.0__maxlen512",
)
ADVANTAGES = tuple(f"trl__adv__sum_then_normalize__{scale}" for scale in ("group", "batch", "none"))
TENSORS = ("logprobs", "old_logprobs", "ref_logprobs", "mask", "seq_advantages")
ABOUT = ("framework", "version", "function", "options", "notes")


def main(archive: str) -> None:
    """Write `peers.json.xz` from the archive of all vectors."""
    wanted = {f"{stem}.json": stem for stem in (*LOSSES, *ADVANTAGES)}
    files: dict[str, Any] = {}
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            stem = wanted.get(member.name.rpartition("/")[2])
            stored = tar.extractfile(member) if stem else None
            if stem and stored:
                files[stem] = json.load(stored)
    inputs: dict[str, Any] = {}
    compact = {
        "inputs": inputs,
        "losses": {stem: _loss_file(files[stem], inputs) for stem in LOSSES},
        "advantages": {stem: _advantage_file(files[stem]) for stem in ADVANTAGES},
    }
    text = json.dumps(compact, separators=(",", ":"))
    OUTPUT.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{OUTPUT}: {len(files)} files, {OUTPUT.stat().st_size / 1000:.0f} kB")


def _loss_file(file: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """What the framework answered to each case; what it was asked goes into `inputs` once for all frameworks."""
    cases = {}
    for case in file["cases"]:
        given = {name: case["inputs"][name] for name in TENSORS if name in case["inputs"]}
        known = inputs.setdefault(case["name"], {})
        assert all(known.setdefault(name, value) == value for name, value in given.items()), case["name"]
        cases[case["name"]] = {"loss": case["loss"], "gradient": case["grad_logprobs"]}
    return {**{key: file[key] for key in ABOUT if key in file}, "cases": cases}


def _advantage_file(file: dict[str, Any]) -> dict[str, Any]:
    cases = {
        case["name"]: {
            "rewards": case["inputs"]["rewards"],
            "group_size": case["inputs"]["group_size"],
            "advantages": case["advantages"],
        }
        for case in file["cases"]
    }
    return {**{key: file[key] for key in ABOUT if key in file}, "cases": cases}


if __name__ == "__main__":
    main(sys.argv[1])
