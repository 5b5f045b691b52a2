"""Hypotheses registered before their data, in experiments/registrations.jsonl: append-only, and committed like code.

A line holds, for each hypothesis of a study, a hash of everything that decides it: its text, the study's factors,
overrides and score, what they compose to (so that neither a default of conf/ nor a key on the command line can be
another), and the seeds that are to be run for it. A verdict is confirmatory where every one of its runs
began on a commit that has the line (`report/registered.py`); everything else is exploratory. A changed hypothesis has
another hash, so it needs another line, and other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpolab.errors import RequestError
from grpolab.identity import signature
from grpolab.paths import commit, git, project_root
from grpolab.settings.run import RunSettings
from grpolab.sweep.study import Study
from grpolab.vocabulary import CONFIRMATION_SEEDS, REGISTRY

# Of a study, besides the hypothesis itself: what is compared, how it is trained, and how it is scored.
_RULES = {"name", "overrides", "factors", "compare", "baseline", "skip", "primary_metric", "stability"}


def variants_of(settings: Mapping[str, RunSettings]) -> dict[str, str]:
    """What the variants of a study compose to: the signature of each at seed 0."""
    return {name: signature(run.model_copy(update={"seed": 0}).identity()) for name, run in settings.items()}


def hashes(study: Study, variants: Mapping[str, str], seeds: Sequence[int]) -> dict[str, str]:
    """Each hypothesis' hash with these variants (`variants_of`) and seeds, by id: 16 hex digits of SHA-256."""
    rules = study.model_dump(mode="json", include=_RULES), dict(variants), sorted(seeds)
    texts = {
        claim.id: json.dumps([claim.model_dump(mode="json"), *rules], sort_keys=True) for claim in study.hypotheses
    }
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def registered(study: Study, variants: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Hypothesis -> the newest `line` that has it as it is now, and that line's `seeds`; the others are left out."""
    file, known = project_root() / REGISTRY, dict[str, dict[str, Any]]()
    for text in file.read_text().splitlines() if file.is_file() else ():
        line = json.loads(text)
        if line["study"] == study.name:
            now = hashes(study, variants, line["seeds"])
            same = [name for name, digest in line["hypotheses"].items() if now.get(name) == digest]
            known |= {name: {"line": text, "seeds": line["seeds"]} for name in same}
    return known


def register(study: Study, variants: Mapping[str, str], seeds: Sequence[int], trained: set[int], time: str) -> str:
    """Append the study's hypotheses with the seeds that will decide them; the line.

    `trained`: seeds of which the study has runs. Raises RequestError where nothing is claimed or new, or a seed is not
    fresh.
    """
    problems = []
    if not study.hypotheses:
        problems.append(f"study {study.name} has no hypothesis: write one under `hypotheses:` first")
    if used := sorted(set(seeds) & trained):
        problems.append(f"seeds={_listed(used)} of study {study.name} are trained already: register seeds that are not")
    if early := [seed for seed in seeds if seed < CONFIRMATION_SEEDS]:
        problems.append(
            f"seeds={_listed(early)} are for exploring, choosing regimes and tuning: confirm with seeds from"
            f" {CONFIRMATION_SEEDS} on (--seeds {CONFIRMATION_SEEDS},{CONFIRMATION_SEEDS + 1},...)"
        )
    digests, known = hashes(study, variants, seeds), registered(study, variants)
    if study.hypotheses and all(known.get(name, {}).get("seeds") == sorted(seeds) for name in digests):
        problems.append(f"study {study.name} is registered with these seeds and as it is: nothing to add")
    if problems:
        raise RequestError(problems)
    root = project_root()
    author = git(root, "config", "user.name")
    line = {
        "study": study.name,
        "time": time,
        "author": author.strip() if author else None,
        "commit": commit(root),
        "seeds": sorted(seeds),
        "hypotheses": digests,
    }
    text = json.dumps(line)
    with (root / REGISTRY).open("a") as file:
        file.write(text + "\n")
    return text


def _listed(seeds: Sequence[int]) -> str:
    return ",".join(map(str, seeds))
