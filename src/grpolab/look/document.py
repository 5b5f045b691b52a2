"""The numbers of a page as one JSON document: studies, runs, claims, and the tokens of some runs.

Everything is read from the tables that the figures are drawn from. The format is described in docs/page.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import yaml
from scipy.special import stdtrit

from grpolab.doctor.causes import Finding
from grpolab.doctor.section import causes_of, examined
from grpolab.errors import Damaged
from grpolab.look import curves
from grpolab.meanings import METRICS
from grpolab.paths import SIGNATURE, map_leaves
from grpolab.report.brief import strip_markdown
from grpolab.report.claims import Claim
from grpolab.report.journals import both, collapse_place, column, largest, read_samples
from grpolab.report.load import StudyRuns
from grpolab.report.measures import is_share, stability_table
from grpolab.report.style import arm_styles
from grpolab.run_files import EACH, check_shape, read_object
from grpolab.vocabulary import DIVERGED, MISSING, STOPPED

FORMAT = 1
MOST_FREEDOM = 60  # degrees of freedom in the table of Student's t
# Characters of a page's curves: a study of 150 runs stays below 4 MB, one of any size below 12 MB, pictures included.
CURVES, CURVES_OF_A_RUN, MOST_CURVES = 3_200_000, 6_000, 10_000_000
MOST_TOKENS, MOST_PROMPTS = 15_000, 4  # of the samples in a page
MOST_LETTERS = 20_000  # of one text; what is behind is left out, and said
COLLAPSED = "collapsed"  # as the report labels it
CLIP_MARKS = {"low": "v", "high": "^", "": "."}
Document = dict[str, Any]


def make(
    studies: Sequence[StudyRuns],
    claims: Sequence[Claim],
    now: datetime,
    causes: Mapping[str, tuple[Finding, ...]] | None = None,
    live_s: float | None = None,
    known: Mapping[str, Document] = MappingProxyType({}),
) -> Document:
    """Return the document of a study, or of a collection's studies, which come before it.

    `now` is written on the page; `live_s`: it is written anew every that many seconds. `causes`: the findings of each
    run by signature; None: those that its journal shows. `known`: documents of runs that need not be made again.
    """
    whole, parts = studies[-1], [study for study in studies if len(study.cells)]
    runs = sum(study.cells["signature"].nunique() for study in parts)
    k = curves.every(parts, min(MOST_CURVES, max(CURVES, CURVES_OF_A_RUN * runs)))
    documents = dict(known)
    for part in parts:
        documents |= {run["signature"]: run for run in _runs(part, k, documents, causes)}
    places = {signature: place for place, signature in enumerate(documents)}
    used = {
        name for run in documents.values() for curve in ("train", "eval") for name in run.get(curve, {"y": ()})["y"]
    }
    return {
        "format": FORMAT,
        "name": whole.name,
        "question": whole.plan["question"],
        "written": now.isoformat(timespec="seconds"),
        "live_s": live_s,
        "thinning": {"every": k, "says": _thinning(k)},
        "t95": [round(float(stdtrit(n, 0.975)), 6) for n in range(1, MOST_FREEDOM + 1)],
        "metrics": {name: _metric(parts, name) for name in METRICS if name in used},
        "studies": [_study(part, places) for part in parts],
        "runs": list(documents.values()),
        "claims": [_claim(claim) for claim in claims],
        "samples": list(_samples(parts, places)),
        "progress": None,
    }


def to_json(document: Document) -> str:
    """Write a document so that no text in it can end its script element, and no number is NaN or infinite."""
    text = json.dumps(map_leaves(document, _finite), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """Return null in the place of a number that JSON lacks, and a plain number for numpy's."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _thinning(k: int) -> str:
    if k == 1:
        return "Curves have every rollout step."
    return (
        f"Curves have every {k}th rollout step and the last one; lines of single seeds also have the least and the"
        " largest value of each run. Means are of the steps that are shown."
    )


def _metric(parts: Sequence[StudyRuns], name: str) -> Document:
    metric = METRICS[name]
    words = {"meaning": metric.meaning, "unit": metric.unit, "kind": metric.kind, "share": is_share(parts[0], name)}
    return words | ({"of_step": curves.how_joined(name)} if metric.kind == "update" else {})


def _study(study: StudyRuns, places: Mapping[str, int]) -> Document:
    arms, facets = study.arms, study.facets
    cells = [
        [places.get(cell.signature, -1), arms.index(cell.arm), facets.index(cell.facet), int(cell.seed)]
        for cell in study.cells.itertuples()
    ]
    return {
        "name": study.name,
        "question": study.plan["question"],
        "compare": study.plan["compare"],
        "baseline": study.baseline,
        "paired": study.is_paired,
        "arms": [
            {"name": arm, "colour": look.colour, "dash": _dash(look.line)} for arm, look in arm_styles(arms).items()
        ],
        "facets": facets,
        "facet_name": study.facet_factors,
        "score": {"metric": study.metric, "name": study.score_name},
        "cells": cells,
    }


def _dash(line: Any) -> list[float]:
    """Return a line style of matplotlib as lengths of dashes and gaps; none for a solid line."""
    named: dict[str, list[float]] = {"-": [], "--": [4, 2], "-.": [5, 2, 1, 2], ":": [1, 2]}
    return named[line] if isinstance(line, str) else list(line[1])


# --- runs ------------------------------------------------------------------------------------------------------------


def _runs(
    study: StudyRuns, k: int, known: Mapping[str, Document], causes: Mapping[str, tuple[Finding, ...]] | None
) -> Iterator[Document]:
    """Yield each run of a study that has an outcome and is not known yet."""
    told, causes = causes or {}, causes_of(study) if causes is None else causes
    of_run = {signature: of for signature, *of in curves.of_runs(study, k, known)}
    labels = {run.run: run for run in examined(study, causes)}
    scores = stability_table(study).set_index(study.done["signature"])
    settings, links = _settings_that_differ(study), _mlflow_links(study)
    for cell in study.cells[study.cells["outcome"] != MISSING].itertuples():
        signature = cell.signature
        if signature in known:
            continue
        folder = _folder(study, signature)
        run = {
            "signature": signature,
            "outcome": cell.outcome,
            "reason": _text(getattr(cell, "reason", "")),
            "lost": labels[signature].lost if signature in labels else "",
            "steps": _number(getattr(cell, "rollout_steps", None)),
            "seconds": _number(getattr(cell, "seconds", None)),
            "folder": f"../../runs/{signature}" if folder else "",
            "mlflow": links.get(signature, ""),
            "settings": settings.get(signature, {}),
            "findings": [
                {key: getattr(finding, key) for key in ("confidence", "cause", "evidence", "remedy")}
                | {"says": f"{finding.cost} {finding.says}".lstrip()}
                for finding in causes.get(signature, ())
            ],
        }
        begins = [(of.step, f"{of.cause.replace('_', ' ')} begins") for of in told.get(signature, ()) if of.step]
        run["marks"] = [*_marks(study, cell, str(run["lost"])), *begins]
        if signature in of_run:
            run |= dict(zip(("train", "eval"), of_run[signature], strict=True))
        if signature in scores.index:
            row, best = scores.loc[signature], largest(column(study.of_cell("evaluations", cell), study.metric))
            run["score"] = [row["start"], best, row["final_score"]]
        yield run


def _marks(study: StudyRuns, cell: Any, lost: str) -> list[tuple[int, str]]:
    """Return the rollout step at which a lost run was lost, with how."""
    evaluations = study.of_cell("evaluations", cell)
    steps, values = both(evaluations, "rollout_step", study.metric, ~evaluations["carried"])
    if lost == COLLAPSED and len(values):
        return [(int(steps[collapse_place(values, study.thresholds)]), "its score had collapsed")]
    return [(int(cell.rollout_steps), lost)] if lost in (DIVERGED, STOPPED) else []


def _mlflow_links(study: StudyRuns) -> dict[str, str]:
    """Return the address of each run in MLflow's pages, as the tracking store's mirror left them; none if damaged."""
    with suppress(Damaged):
        if places := read_object(study.results.mlflow_runs(study.name)):
            check_shape(places, {"pages": str, "runs": {EACH: str}}, study.results.mlflow_runs(study.name))
            if re.fullmatch(r"https?://[^\s/]+[^\s]*", places["pages"]):
                return {name: f"{places['pages']}/{quote(run)}" for name, run in places["runs"].items()}
    return {}


def _settings_that_differ(study: StudyRuns) -> dict[str, dict[str, str]]:
    """Return the settings of each run that differ from those of the baseline's run in its facet with its seed.

    As `mine (baseline's)`. A run without such a neighbour is compared with any run of the baseline.
    """
    names = [name for name in study.cells if name.startswith("setting/") and name != "setting/seed"]
    cells = study.cells.drop_duplicates(["facet", "seed", "arm"])
    texts = cells[names].astype(object).where(cells[names].notna(), "none").astype(str)
    baseline = cells["arm"] == study.baseline
    by_place = dict(zip(_places(cells[baseline]), texts[baseline].to_dict("records"), strict=True))
    other: dict[Any, str] = next(iter(by_place.values()), {})
    differ = {}
    for place, signature, row in zip(_places(cells), cells["signature"], texts.to_dict("records"), strict=True):
        base = by_place.get(place, other)
        differ[signature] = {
            name.removeprefix("setting/"): f"{row[name]} ({base.get(name, 'none')})"
            for name in names
            if row[name] != base.get(name)
        }
    return differ


def _places(cells: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(cells["facet"], cells["seed"], strict=True))


def _folder(study: StudyRuns, signature: str) -> Path | None:
    """Return the folder of a run; None where it is not here, or another program's."""
    folder = study.results.run(signature) if SIGNATURE.fullmatch(signature) else None
    return folder if folder and folder.is_dir() else None


def _sample_files(study: StudyRuns, signature: str) -> list[Path]:
    folder = _folder(study, signature)
    return sorted(folder.glob("samples/step_*.parquet")) if folder else []


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    rest = len(value) - MOST_LETTERS
    return f"{value[:MOST_LETTERS]} [{rest:,} characters more]" if rest > 0 else value


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


# --- claims ----------------------------------------------------------------------------------------------------------

_FIELDS = (
    *("study", "id", "says", "registered", "source", "metric", "where", "contrast", "verdict", "found", "label", "why"),
    *("word", "kind", "because", "rollouts"),
    *("n", "seeds", "size", "effect", "low", "high", "p", "adjusted_p", "q", "flags", "sentence"),
)

# The metric whose curve shows a quantity of the whole run, where it is not the score.
_CURVES = {
    **dict.fromkeys(("entropy_first", "entropy_last", "entropy_last20", "entropy_min"), "entropy/behaviour"),
    **dict.fromkeys(("entropy_drop", "entropy_ratio", "entropy_slope"), "entropy/behaviour"),
    **dict.fromkeys(("entropy_collapsed", "entropy_exploded"), "entropy/behaviour"),
    **dict.fromkeys(("grad_norm_p50", "grad_norm_p99", "grad_norm_max", "spikes_per_100", "spiky"), "grad_norm"),
    **dict.fromkeys(("ratio_max", "log_ratio_range", "ratio_blow_up"), "ratio/token_max"),
    **dict.fromkeys(("clip_change", "ceiling_share"), "clip/active"),
    **dict.fromkeys(("kl_old", "kl_old_high"), "kl_old/k3"),
    **dict.fromkeys(("starvation", "starved", "zero_variance_gap"), "zero_variance/share"),
    **{"starved_right": "zero_variance/all_right", "starved_wrong": "zero_variance/all_wrong"},
    **{"truncation": "truncation/share", "truncated": "truncation/share", "kl_ref": "kl_ref/exact"},
    "length_ratio": "length/mean",
    **{"sequence_ratio_max": "ratio/sequence_max", "ess_min": "ratio/ess", "outer_mass": "clip/outer"},
    **{"clip_share": "clip/active_nz", "up_clipped_gap": "p_old/up_clipped", "clipped_gradients": "grad_norm"},
    **{"counterfactual_log_ratio": "cf/sequence_0.2", "sequence_sign_gap": "ratio/sequence_mean_pos"},
}


def _claim(claim: Claim) -> Document:
    """Return a claim with what decided it: the difference of each seed in each task."""
    document = {name: getattr(claim, name) for name in _FIELDS}
    texts = ("says", "registered", "size", "rollouts", "sentence")
    document |= {name: strip_markdown(document[name]) for name in texts}
    document["curve"] = claim.metric if claim.metric in METRICS else _CURVES.get(claim.metric, "")
    question = claim.question
    if question is None:
        return document | {"log": False, "arms": [], "tasks": [], "looks": [], "yaml": ""}
    tasks = []
    if question.kind == "mean":
        differences_TS = question.differences(len(question.seeds)).T
        for place, (task, margin, of_task) in enumerate(
            zip(question.tasks, question.margin_T, differences_TS, strict=True)
        ):
            starts = question.start_ST[:, place] if question.start_ST.size else np.array([])
            tasks.append(
                {
                    "name": task,
                    "margin": float(np.exp(margin) if question.logarithmic else margin),
                    "start": float(np.nanmean(starts)) if np.isfinite(starts).any() else None,
                    "differences": [
                        [seed, float(np.exp(value) if question.logarithmic else value)]
                        for seed, value in zip(question.seeds, of_task, strict=True)
                    ],
                }
            )
    written = {key: value for key, value in question.hypothesis.items() if value not in (None, "", [], {}, False)}
    return document | {
        "log": question.logarithmic,
        "arms": question.arms,
        "tasks": tasks,
        "looks": list(question.looks),
        "yaml": yaml.safe_dump(written, sort_keys=False, allow_unicode=True),
    }


# --- samples ---------------------------------------------------------------------------------------------------------


def _samples(parts: Sequence[StudyRuns], places: Mapping[str, int]) -> Iterator[Document]:
    """Yield the completions that runs of each arm and facet kept, of one seed, as many as the page has room for."""
    chosen: dict[str, StudyRuns] = {}
    for part in parts:
        kept = part.cells[[bool(_sample_files(part, signature)) for signature in part.cells["signature"]]]
        first = kept.sort_values("seed", kind="stable").drop_duplicates(["arm", "facet"])
        chosen |= {
            signature: part for signature in first["signature"] if signature in places and signature not in chosen
        }
    room = MOST_TOKENS / max(1, len(chosen))
    for signature, part in chosen.items():
        if steps := _sampled_steps(_sample_files(part, signature), room):
            yield {"run": places[signature], "steps": steps}


def _sampled_steps(files: Sequence[Path], room: float) -> list[Document]:
    """Return the first prompts of each kept rollout step: at most MOST_PROMPTS, at least one, about `room` tokens."""
    steps = []
    for file in files:
        try:
            rows = read_samples(file)
        except Damaged:
            continue
        has_bytes = bool(rows["token"].str.contains(_SPACES).any())
        of_prompts = [of for _, of in rows.groupby("prompt_index", sort=True)][:MOST_PROMPTS]
        tokens = np.cumsum([len(of) for of in of_prompts])
        shown = max(1, int((tokens <= room / len(files)).sum()))
        prompts = [
            {
                "prompt": _text(of["prompt"].iloc[0]),
                "completions": [_completion(one, has_bytes) for _, one in of.groupby("sample")],
            }
            for of in of_prompts[:shown]
        ]
        steps.append({"step": int(file.stem.removeprefix("step_")), "prompts": prompts})
    return steps


def _letters_of_bytes() -> dict[str, int]:
    """Return the byte of each letter in the vocabulary of a byte-level tokenizer (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in shown)
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _letters_of_bytes()
_SPACES = re.compile("[\u0120\u010a]")  # a blank and a line's end there


def _readable(token: str, has_bytes: bool) -> str:
    """Return a token of a vocabulary as the text that it stands for; `has_bytes`: its letters are bytes."""
    if has_bytes and all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token).decode(errors="replace")
    return token.replace("\u2581", " ")  # as SentencePiece writes a blank


def _completion(rows: pd.DataFrame, has_bytes: bool) -> Document:
    first = rows.iloc[0]
    parts = {name.removeprefix("reward_"): float(first[name]) for name in rows if name.startswith("reward_")}
    numbers = {name: curves.to_text(rows[name]) for name in ("entropy", "gap") if name in rows and rows[name].any()}
    return {
        "text": _text(first["completion"]),
        "reward": float(first["reward"]),
        "parts": parts,
        "advantage": float(first["advantage"]),
        "tokens": [_text(_readable(token, has_bytes)) for token in rows["token"]],
        "ratio": curves.to_text(rows["ratio"]),
        "log_prob": curves.to_text(rows["old_log_prob"]),
        "clip": "".join(CLIP_MARKS.get(mark, ".") for mark in rows["clipped"]),
        **numbers,
    }
