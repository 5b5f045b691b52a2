"""Which colour MLflow's chart gives to an arm: the pages of MLflow 3.17 hash the name of a group into a palette.

Nothing sets a group's colour but its name (a colour that is picked by hand stays in that browser), so two arms would be
blue by chance. The views therefore group by the tag `line`: the variant with as many spaces behind it, which no page
shows, as give it the colour that is meant here. A single run takes the colour of the tag `mlflow.runColor`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

LINE = "line"  # the tag by which a view groups
RUN_COLOUR = "mlflow.runColor"
# MLflow's, in its order.
PALETTE = (
    *("#a6630c", "#c83243", "#b45091", "#8a63bf", "#434a93", "#137dae", "#04867d", "#308613", "#facb66", "#1f272d"),
    *("#445461", "#5f7281", "#8396a5", "#93320b", "#be501e", "#de7921", "#f2be88", "#115026", "#277c43", "#3ba65e"),
    *("#8ddda8", "#9e102c", "#c82d4c", "#e65b77", "#f792a6", "#0e538b", "#2272b4", "#4299e0", "#8acaff"),
)
# An arm has a hue, and each condition under which it is trained (a task, a regime) a shade of it.
HUES = (
    ("#2272b4", "#8acaff", "#0e538b", "#4299e0"),
    ("#de7921", "#93320b", "#f2be88", "#be501e"),
    ("#3ba65e", "#115026", "#8ddda8", "#308613"),
    ("#c82d4c", "#f792a6", "#9e102c", "#e65b77"),
    ("#8a63bf", "#434a93"),
    ("#445461", "#8396a5", "#1f272d", "#5f7281"),
    ("#facb66", "#a6630c"),
    ("#04867d",),
    ("#b45091",),
)
MOST_SPACES = 200


def colours(plan: dict[str, Any]) -> dict[str, str]:
    """The colour of each variant of a study."""
    hues: dict[str, int] = {}
    shades: dict[tuple[str, ...], int] = {}
    found = {}
    for cell in plan["cells"]:
        arm = cell["levels"].get(plan["compare"], cell["variant"])
        condition = tuple(level for factor, level in cell["levels"].items() if factor != plan["compare"])
        turn, hue = divmod(hues.setdefault(arm, len(hues)), len(HUES))
        shade = shades.setdefault(condition, len(shades)) + turn
        found[cell["variant"]] = HUES[hue][shade % len(HUES[hue])]
    return found


@cache
def line_of(variant: str, colour: str) -> str:
    """The variant's name as the charts group by it: with the spaces that make MLflow draw it in this colour."""
    padded = (variant + " " * count for count in range(MOST_SPACES))
    return next((name for name in padded if drawn(name) == colour), variant)


def drawn(name: str) -> str:
    """The colour in which the pages of MLflow 3.17 draw the group whose tag `line` is `name`."""
    first = second = 0
    for letter in f"tag.{LINE}.{name}":
        first = (first + ord(letter)) % 255
        second = (second + first) % 255
    return PALETTE[(first | second << 8) % len(PALETTE)]
