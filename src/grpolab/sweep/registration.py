"""Registrations of hypotheses before their data, in experiments/registrations.jsonl: append-only, committed to git.

For each hypothesis a line holds a hash of everything that decides it: its text, the study's factors, overrides and
score, the signatures of the composed variants (so that no default or key can change), the margins, the seeds, and the
looks (after how many seeds it is tested). A verdict is confirmatory if each of its runs began on a commit that has the
line (`report/registered.py`). A changed hypothesis has another hash, and needs another line and other seeds.

A registration that is given up stays, and a line at the end says so: `withdraws` (the time of the registration), its
`seeds` and `hypotheses`, the `reason`, and what its runs `said`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpolab.errors import RequestError
from grpolab.paths import commit, git, project_root, roots
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS, LOOKS, REGISTRY

# The fields of a study that decide its hypotheses.
_RULES = {"name", "overrides", "factors", "compare", "baseline", "skip", "primary_metric", "stability"}
# Fields of a hypothesis that its hash leaves out: what only its page shows, and its kind, which the line has beside it.
PAGE = {"tested", "also", "kind", "because"}
Margins = Mapping[str, Mapping[str, float | None]]  # hypothesis -> place (levels and task) -> margin


def hypothesis_texts(study: Study, variants: Mapping[str, str]) -> dict[str, str]:
    """Return everything that decides each hypothesis as text, by id; `variants`: signatures with seed 0, by name.

    Left out are defaults, so that a new key of study files changes no registration, and PAGE.
    """
    rules = study.model_dump(mode="json", include=_RULES, exclude_defaults=True), dict(variants)
    texts = {claim.id: claim.model_dump(mode="json", exclude_defaults=True, exclude=PAGE) for claim in study.hypotheses}
    return {name: json.dumps([text, *rules], sort_keys=True) for name, text in texts.items()}


def find_registrations(name: str, texts_now: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return for each hypothesis the newest `line` that registers this text, with what it says of the hypothesis.

    That is `seeds`, `looks`, `margins`, `kind` (with its reason; None in lines of before it was kept) and `earlier`,
    how often a hypothesis of that id was registered before. `name` is the study or collection. Hypotheses without such
    a line are left out.
    """
    known, times = dict[str, dict[str, Any]](), dict[str, set[str]]()
    for text, line in _lines_of(name):
        for hypothesis in line["hypotheses"]:
            earlier = times.setdefault(hypothesis, set())
            earlier.add(line.get("withdraws") or line["time"])
            if "withdraws" in line:
                continue
            rules = line["seeds"], line["looks"], line["margins"][hypothesis]
            if line["hypotheses"][hypothesis] == _digest(texts_now.get(hypothesis), *rules):
                known[hypothesis] = {"line": text, **dict(zip(("seeds", "looks", "margins"), rules, strict=True))}
                known[hypothesis]["kind"] = line.get("kinds", {}).get(hypothesis)
                known[hypothesis]["time"] = line["time"]
    for hypothesis, entry in known.items():
        time = entry.pop("time")
        entry["earlier"] = sum(other < time for other in times[hypothesis])
    return known


def find_withdrawn(name: str) -> list[dict[str, Any]]:
    """Return the lines that give up registrations of a study or collection."""
    return [line for _, line in _lines_of(name) if "withdraws" in line]


def _lines_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of the registry that are of a study or collection, as text and as they read."""
    for file in (root / REGISTRY for root in roots()):
        for number, text in enumerate(file.read_text().splitlines() if file.is_file() else (), start=1):
            if not text.strip():  # an editor or a merge may leave an empty line
                continue
            try:
                line = json.loads(text)
            except ValueError as error:
                raise RequestError(f"{file}, line {number} is no JSON: restore it from git") from error
            if line["study"] == name:
                yield text, line


def _digest(text: str | None, seeds: Sequence[int], looks: Sequence[int], margins: Mapping[str, float | None]) -> str:
    whole = json.dumps([text, sorted(seeds), list(looks), dict(margins)], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def register(
    name: str,
    texts_now: Mapping[str, str],
    seeds: Sequence[int],
    looks: Sequence[int],
    margins: Margins,
    kinds: Mapping[str, str],
    trained: set[int],
    explored: Sequence[int],
    time: str,
) -> str:
    """Append the hypotheses of a study or collection with the seeds that will decide them, and return the line.

    `kinds`: the kind of each hypothesis with its reason. `trained` are seeds that have runs, `explored` those that the
    margins come from. Raises RequestError if there is no hypothesis or no new one, a seed was used before, or there
    are fewer seeds than the last look needs.
    """
    problems = []
    if not texts_now:
        problems.append(f"study {name} has no hypothesis: write one under `hypotheses:` first")
    if used := sorted(set(seeds) & trained):
        problems.append(f"seeds={_listed(used)} of study {name} are trained already: register seeds that are not")
    if early := [seed for seed in seeds if seed < CONFIRMATION_SEEDS]:
        problems.append(
            f"seeds={_listed(early)} are for exploring, choosing regimes and tuning: confirm with seeds from"
            f" {CONFIRMATION_SEEDS} on (--seeds {CONFIRMATION_SEEDS},{CONFIRMATION_SEEDS + 1},...)"
        )
    if len(seeds) < looks[-1]:
        problems.append(f"seeds={_listed(seeds)} are {len(seeds)}: study {name} looks at {_listed(looks)} of them")
    known = find_registrations(name, texts_now)
    if texts_now and all(known.get(hypothesis, {}).get("seeds") == sorted(seeds) for hypothesis in texts_now):
        problems.append(f"study {name} is registered with these seeds and as it is: nothing to add")
    if problems:
        raise RequestError(problems)
    root = project_root()
    author = git(root, "config", "user.name")
    line = {
        "study": name,
        "time": time,
        "author": author.strip() if author else None,
        "commit": commit(root),
        "seeds": sorted(seeds),
        "looks": list(looks),
        "explored": list(explored),
        "margins": {claim: dict(margins[claim]) for claim in texts_now},
        "kinds": {claim: kinds[claim] for claim in texts_now},
        "hypotheses": {claim: _digest(text, seeds, looks, margins[claim]) for claim, text in texts_now.items()},
    }
    text = json.dumps(line)
    with (root / REGISTRY).open("a") as file:
        file.write(text + "\n")
    return text


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers if len(numbers) <= LOOKS[-1] else [*numbers[:3], "...", numbers[-1]]))
