"""Hypotheses registered before their data, in experiments/registrations.jsonl: append-only, and committed like code.

A line holds, for each hypothesis, a hash of everything that decides it: its text, the study's factors, overrides and
score, what they compose to (so that neither a default of conf/ nor a key on the command line can be another), the
margins, the seeds that are to be run for it, and after how many of them it is looked at. A verdict is confirmatory
where every one of its runs began on a commit that has the line (`report/registered.py`); everything else is
exploratory. A changed hypothesis has another hash, so it needs another line, and other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpolab.errors import RequestError
from grpolab.paths import commit, git, project_root
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS, REGISTRY

# Of a study, besides the hypothesis itself: what is compared, how it is trained, and how it is scored.
_RULES = {"name", "overrides", "factors", "compare", "baseline", "skip", "primary_metric", "stability"}
PAGE = {"tested", "also"}  # of a hypothesis
Margins = Mapping[str, Mapping[str, float | None]]  # hypothesis -> place (levels and task) -> margin


def texts(study: Study, settings: Mapping[str, RunSettings]) -> dict[str, str]:
    """All that a study says of each hypothesis, by id; `settings` are what its variants compose to.

    Without what stands at its default, so that a new key of study files leaves registrations as they are, and without
    what the page says of it (PAGE), which decides nothing.
    """
    variants = {
        name: resolve_run(run.model_copy(update={"seed": 0})).signature for name, run in sorted(settings.items())
    }
    rules = study.model_dump(mode="json", include=_RULES, exclude_defaults=True), variants
    return {
        claim.id: json.dumps(
            [claim.model_dump(mode="json", exclude_defaults=True, exclude=PAGE), *rules], sort_keys=True
        )
        for claim in study.hypotheses
    }


def registered(name: str, texts_now: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Hypothesis -> the newest `line` that has it as it is now, with its `seeds`, `looks` and `margins`.

    `name`: the study or collection. Hypotheses that no line has are left out.
    """
    file, known = project_root() / REGISTRY, dict[str, dict[str, Any]]()
    for number, text in enumerate(file.read_text().splitlines() if file.is_file() else (), start=1):
        if not text.strip():  # as an editor, or a merge, may leave it
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise RequestError(f"{file}, line {number} is no JSON: restore it from git") from error
        for hypothesis, digest in line["hypotheses"].items() if line["study"] == name else ():
            rules = line["seeds"], line["looks"], line["margins"][hypothesis]
            if digest == _digest(texts_now.get(hypothesis), *rules):
                known[hypothesis] = {"line": text, **dict(zip(("seeds", "looks", "margins"), rules, strict=True))}
    return known


def _digest(text: str | None, seeds: Sequence[int], looks: Sequence[int], margins: Mapping[str, float | None]) -> str:
    """16 hex digits of SHA-256."""
    whole = json.dumps([text, sorted(seeds), list(looks), dict(margins)], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def register(
    name: str,
    texts_now: Mapping[str, str],
    seeds: Sequence[int],
    looks: Sequence[int],
    margins: Margins,
    trained: set[int],
    explored: Sequence[int],
    time: str,
) -> str:
    """Append the hypotheses of a study or collection with the seeds that will decide them; the line.

    `trained`: those of which it has runs; `explored`: those that the margins are from. Raises RequestError where
    nothing is claimed or new, a seed is not fresh, or there are fewer seeds than the last look asks for.
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
    known = registered(name, texts_now)
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
        "margins": {hypothesis: dict(margins[hypothesis]) for hypothesis in texts_now},
        "hypotheses": {
            hypothesis: _digest(text, seeds, looks, margins[hypothesis]) for hypothesis, text in texts_now.items()
        },
    }
    text = json.dumps(line)
    with (root / REGISTRY).open("a") as file:
        file.write(text + "\n")
    return text


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
