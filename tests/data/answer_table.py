"""What the extractor of answers and math-verify get right on 254 hand-made cases: the table of docs/language_models.md.

`python tests/data/answer_table.py` prints it; without math-verify (`make extras WHAT=math`) its column is empty. A case
is right if the verdict on the completion is the one that a person gave, which is 'wrong' of 72.
"""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

from grpolab.data.text_tasks import Jsonl
from grpolab.tasks.base import Example

CASES = Path(__file__).with_name("hard_answers.csv")


def rows() -> list[dict[str, str]]:
    """The cases: kind, gold, completion, and `right`, 1 or 0."""
    with CASES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def judged(verifier: str | None) -> list[bool]:
    """Of each case, whether the task's verdict is the person's."""
    how = {"prompt_key": "", "answer_key": "", "template": "{prompt}", "chat": False, "verifier": verifier}
    task = Jsonl("", "", **how)
    scores = [task.score(Example("", case["gold"]), case["completion"])["correct"] for case in rows()]
    return [score == float(case["right"]) for score, case in zip(scores, rows(), strict=True)]


def table() -> list[str]:
    """The lines of the table, the sum below."""
    kinds = [case["kind"] for case in rows()]
    columns = [judged(None), judged("math_verify") if find_spec("math_verify") else None]
    lines = ["| kind | cases | `verifier: null` | `verifier: math_verify` |", "| --- | --- | --- | --- |"]
    for kind in [*dict.fromkeys(kinds), None]:
        places = [place for place, other in enumerate(kinds) if kind in (other, None)]
        right = ["" if column is None else sum(column[place] for place in places) for column in columns]
        lines.append(f"| {kind or 'all'} | {len(places)} | {right[0]} | {right[1]} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
