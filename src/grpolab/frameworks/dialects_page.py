"""Write `docs/dialects.md`: how the frameworks differ, from their presets and their own functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from grpolab.framework_metrics import FRAMEWORK_METRICS
from grpolab.frameworks.framework import compute_metrics
from grpolab.frameworks.objectives import make_objective
from grpolab.grpo.aggregation import Totals
from grpolab.grpo.loss import LossInputs
from grpolab.meanings import CLIP_METRIC
from grpolab.registry import AGGREGATIONS, FRAMEWORKS, resolve
from grpolab.settings.objective import ObjectiveSettings
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings

AXES = [name for name in ObjectiveSettings.model_fields if name != "framework"]
PPO = make_objective(beta=0.1)
# Advantage of each sequence of the example -> its ratios.
EXAMPLE = {0.9: [1.5, 1.3, 1.25, 2.0, 0.7, 1.1], -1.3: [0.5, 0.6, 0.75, 0.3], 0.0: [1.6], 0.6: [1.4, 1.9, 0.9]}
# In a preset's comment: repository, version, commit (or PyPI), date of what was read.
SOURCE = re.compile(
    r"Source: ([\w.-]+/[\w.-]+) (\S+) \((PyPI|commit [0-9a-f]{7,40}|commit not known), (\d{4}-\d\d-\d\d)\), "
)
# What several frameworks report, as `framework/metric`, under names that are alike or not.
FAMILIES = {
    "The clip fraction": " ".join("/".join(item) for item in CLIP_METRIC.items())
    + " roll/actor/ppo_ratio_clipfrac@sum",
    "How far the policy moved in the update": "verl/actor/ppo_kl openrlhf/ppo_kl slime/ppo_kl roll/actor/policykl@sum"
    " roll/actor/approxkl@sum areal/approx_kl",
    "The ratio": "roll/actor/ratio_mean@sum roll/actor/ratio_mean areal/importance_weight nemo_rl/probs_ratio"
    " open_instruct/val/ratio torchtune/ratios",
    "The KL to the reference": "trl/kl verl/kl_loss roll/actor/kl_loss@sum slime/kl_loss nemo_rl/kl_penalty"
    " open_instruct/loss/kl_avg skyrl/policy_kl torchtune/kl_loss",
}
OTHER_NAMES = """\
- `dr_grpo`: in TRL a sum over (sequences x the longest length allowed); in ROLL and in verl until 2026-01
  (`seq-mean-token-sum-norm`) over the length alone; in OpenRLHF an advantage without the std, a separate axis.
- `token-mean`: ROLL adds up padding too; TRL's `dapo` divides by the tokens of the generation batch, its `bnpo` by
  those of the micro-batch; AReaL counts the tokens before rejection.
- `seq-mean-token-mean`: empty sequences are in the denominator of TRL's `grpo`, slime, SkyRL and verl's training, and
  not in ROLL's, OpenRLHF's and NeMo-RL's.
- `clip_high` of CISPO: the cap itself in TRL; 1 + it in verl, slime, NeMo-RL and SkyRL; ROLL's is .1, SkyRL's 4.
- dual clip: verl 3, always on; ROLL 1 + 2 `pg_clip`, off; TRL's `delta` cuts for both signs of the advantage.
- `clip_ratio`: TRL's `completions/clipped_ratio` is truncation, not clipping.
- sampler weight of a sequence: a product in verl, TRL, SkyRL and NeMo-RL, a geometric mean in AReaL and OpenRLHF.
"""


def page(settings: Mapping[str, RunSettings], comments: Mapping[str, str]) -> str:
    """Return the whole page, from every dialect's settings and its file's comment, by the dialect's name."""
    inputs = make_example()
    ratios = "; ".join(f"A = {A:g}: {', '.join(f'{r:g}' for r in row)}" for A, row in EXAMPLE.items())
    values = {name: format_axes(each) for name, each in settings.items()}
    first, *others = (values[name] for name in FRAMEWORKS)
    same = [axis for axis in AXES if all(other[axis] == first[axis] for other in others)]
    rows = [[f"`{axis}`", *(values[name][axis] for name in FRAMEWORKS)] for axis in AXES if axis not in same]
    blocks = [
        "# Dialects",
        "Written by `grpolab dialects` from `conf/dialect/`, the vocabulary, and what the adapters in `frameworks/`"
        " compute. `dialect=verl` is a framework's default, `dialect=verl/gspo` one of its modes.",
        "## What was read",
        "Of a release on PyPI the date is that of its files. A mode with a version in its name is that of an older"
        " source, which the committed vectors hold. `grpolab dialects --drift` compares with newer sources.",
        sources(comments),
        "## The defaults, side by side",
        table(["axis", *FRAMEWORKS], rows),
        f"The same in all (- is: not there): {', '.join(f'`{axis}` {first[axis]}' for axis in same)}."
        " The KL's axes mean something where `beta` is above 0.",
        "\n".join(f"- **{name}**: {comments[name]}" for name in FRAMEWORKS),
        "## Modes, as differences from their framework's default",
        *(modes_of(framework, values, comments) for framework in FRAMEWORKS),
        "## Same name, different maths",
        "Every number below is one batch, through each framework's adapter, with one objective (token ratio, clip .2 on"
        f" both sides, token mean, beta .1). Its ratios: {ratios}. Reference and sampler are the old policy.",
        clip_fractions(inputs),
        *(family(title, members, settings, inputs) for title, members in FAMILIES.items()),
        "### Averages",
        "The last column averages the example's ratios; completions may have 16 tokens.",
        averages(values, inputs),
        "### Other names",
        OTHER_NAMES,
    ]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def sources(comments: Mapping[str, str]) -> str:
    """Return a table of what was read of each framework, and of each mode of another version."""
    read = {name: match.groups() for name, comment in comments.items() if (match := SOURCE.search(comment))}
    own = {name: row for name, row in read.items() if row != read.get(name.partition("/")[0]) or name in FRAMEWORKS}
    rows = [[f"`{name}`", *own[name]] for name in sorted(own, key=lambda name: [*FRAMEWORKS].index(name.split("/")[0]))]
    return table(["dialect", "repository", "version", "commit", "date"], rows)


def format_axes(settings: RunSettings) -> dict[str, str]:
    """Format the axes; of the kernels' options only those of the run's kernel."""
    dumped = settings.model_dump(include=set(AXES))
    dumped["kernel_options"] = (dumped["kernel_options"] or {}).get(dumped["kernel"])
    return {axis: format_value(dumped[axis]) for axis in AXES}


def format_value(value: Any) -> str:
    """Format a value; - is: not there."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "&#124;") for cell in cells] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def modes_of(framework: str, values: Mapping[str, Mapping[str, str]], comments: Mapping[str, str]) -> str:
    """Return a folded table of a framework's modes."""
    rows = []
    for name, axes in values.items():
        if name.startswith(f"{framework}/"):
            changes = [f"`{axis}` {axes[axis]}" for axis in AXES if axes[axis] != values[framework][axis]]
            rows.append([f"`{name}`", comments[name], "; ".join(changes) or "nothing"])
    if not rows:
        return f"{framework} has no other mode."
    modes = table(["mode", "what it is", "what differs"], rows)
    return f"<details><summary>modes of {framework} ({len(rows)})</summary>\n\n{modes}\n\n</details>"


def make_example() -> LossInputs:
    """Make four ragged sequences, one without an advantage; reference and sampler are the old policy."""
    rows = [torch.tensor(ratios, dtype=torch.double) for ratios in EXAMPLE.values()]
    ratio_BT = pad_sequence(rows, batch_first=True, padding_value=1.0)
    mask_BT = pad_sequence([torch.ones_like(row_T) for row_T in rows], batch_first=True).bool()
    old_BT, advantages_B1 = torch.full_like(ratio_BT, -1.0), torch.tensor(list(EXAMPLE), dtype=torch.double)[:, None]
    return LossInputs(old_BT + ratio_BT.log(), old_BT, advantages_B1, mask_BT, Totals.of(mask_BT), old_BT, old_BT)


def clip_fractions(inputs: LossInputs) -> str:
    """Return a table of the example's clip fraction in every way to count it."""
    undivided = replace(inputs, totals=replace(inputs.totals, sequences=1))
    by_sample, by_sum = PPO.but(aggregation="sequence_mean"), PPO.but(aggregation="sequence_sum_nonempty")
    trl, roll = compute_metrics("trl", PPO, inputs), compute_metrics("roll", PPO, inputs)
    ways = {
        "gated, mean over tokens: TRL, verl, OpenRLHF, AReaL, open-instruct, SkyRL, torchtune": trl[CLIP_METRIC["trl"]],
        "gated, mean over sequences: prime-rl": compute_metrics("prime_rl", PPO, inputs)["is_masked"],
        "ratio-only, over tokens: ROLL rlvr `ppo_ratio_clipfrac`": roll["actor/ppo_ratio_clipfrac@sum"],
        "ratio-only, over all positions, padding too: ROLL's base worker": roll["actor/ppo_ratio_clipfrac"],
    }
    slime, roll = compute_metrics("slime", by_sample, undivided), compute_metrics("roll", by_sum, inputs)
    ways["gated, a sum of sequences' means: slime before its engine divides"] = slime["pg_clipfrac"]
    ways["gated, a sum over tokens: ROLL with seq-mean-token-sum"] = roll["actor/clipfrac@sum"]
    return table(["how it is counted", "clip fraction"], [[way, f"{value:.2f}"] for way, value in ways.items()])


def family(title: str, members: str, settings: Mapping[str, RunSettings], inputs: LossInputs) -> str:
    """Return several frameworks' definitions of one quantity, and the value of each for the example."""
    rows = []
    for framework, _, name in (member.partition("/") for member in members.split()):
        points = PPO, resolve_run(settings[framework]).objective
        values = [compute_metrics(framework, point, inputs).get(name) for point in points]
        numbers = ["-" if value is None else f"{value:.4f}" for value in values]
        rows.append([framework, f"`{name}`", FRAMEWORK_METRICS[framework][name], *numbers])
    return f"### {title}\n\n" + table(["framework", "name", "definition", "here", "by its default"], rows)


def averages(values: Mapping[str, Mapping[str, str]], inputs: LossInputs) -> str:
    """Return a table of all aggregations: the frameworks that default to each, and its mean of the example's ratios."""
    totals, ratio_BT = replace(inputs.totals, max_completion_length=16), (inputs.log_probs_BT + 1).exp()
    rows = []
    for name, path in AGGREGATIONS.items():
        rule = resolve(path)
        average = float((ratio_BT * rule(inputs.mask_BT.double(), totals)).sum())
        users = [framework for framework in FRAMEWORKS if values[framework]["aggregation"] == name]
        rows.append([f"`{name}`", " ".join(rule.__doc__.split()), ", ".join(users) or "-", f"{average:.4f}"])
    return table(["aggregation", "definition", "default of", "here"], rows)
