"""The doctor beside other public tools, on the same logs of planted faults. `make bench WHAT=doctor-peers`

    python benchmarks/doctor_peers.py PEERS [--jobs N] [--quick] [--results FOLDER]

Every run of `make bench WHAT=doctor` (trained if it is not there) is written once more as TRL would have logged it, and
each tool reads that file: ours, and those in the environment PEERS, rl-doctor and probe-the-harness. Counted is whether
the planted fault is among the causes that a tool names, whether it is the first of them, and whether the tool accuses
a healthy run; ours has another row, for what it says with the whole run folder before it. What is counted as naming
a fault stands in NAMED_BY.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import doctor_check
import pandas as pd

from grpolab.doctor import diagnose, diagnose_log
from grpolab.framework_names import LOG_NAMES
from grpolab.meanings import METRICS
from grpolab.paths import Results, read_json, write_text_atomic
from grpolab.report.text import markdown_table
from grpolab.studies.sweep import sweep
from grpolab.vocabulary import DIVERGED

OURS, FOLDER, RLDOCTOR, HARNESS = "ours", "ours, with the run folder", "rl-doctor", "probe-the-harness"
TOOLS = (FOLDER, OURS, RLDOCTOR, HARNESS)

# Which of a peer's findings names which of our causes, read generously: whatever a finding says in particular, its
# detector counts. A cause that is not here is one that no detector of theirs is about.
NAMED_BY = {
    # Groups of equal rewards; an exactly vanishing gradient norm is what they leave behind.
    "constant_reward": {"advantage_collapse", "gradient_pathology"},
    "starving_variance": {"advantage_collapse"},
    # Norms that are zero, vanish, spike or are no numbers.
    "zero_gradient": {"gradient_pathology"},
    "weak_signal": {"gradient_pathology"},
    "overscaled_advantages": {"gradient_pathology"},
    "gradient_explosion": {"gradient_pathology"},
    "not_finite": {"gradient_pathology"},
    "kl_explosion": {"kl_drift"},
    "kl_overflow": {"kl_drift", "gradient_pathology"},
    "strong_kl": {"kl_drift"},  # 'pinned to the reference'
    "entropy_collapse": {"entropy_collapse"},
    "length_blow_up": {"length_pathology"},
    "truncated_from_the_start": {"length_pathology"},
    "tiny_epsilon": {"clip_saturation"},
    "destroyed_policy": {"plateau", "reward_hacking"},  # 'has been declining'; reward and held-out score part
    "plateau": {"plateau"},
    # A clip that stays idle beside a sampler that lags: the one finding of probe-the-harness about a single run.
    "growing_sampler_gap": {"IDLE_CLIP"},
}

# Run in PEERS: a line of JSON for each log, with what each tool finds, worst first. Warnings (3) of rl-doctor and worse
# count; of the sampler's lag our journal has the largest difference and not the mean, which
# can only make probe-the-harness speak more often.
ASK = """
import json, sys
from rl_doctor import diagnose, load_run
import pth
for path in sys.argv[1:]:
    rows = [json.loads(line) for line in open(path)]
    series = lambda name: {row["step"]: row[name] for row in rows if row.get(name) is not None}
    report = pth.scan_clip_vs_kl(series("clip_ratio/region_mean"), series("sampling/sampling_logp_difference/max"))
    print(json.dumps({
        "rl-doctor": [
            finding.detector for finding in diagnose(load_run(path)).problems if finding.severity >= 3
        ],
        "probe-the-harness": ["IDLE_CLIP" for f in report.findings if f.level == "fail"],
    }))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, ask every tool, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path, help="the environment in which the peers are")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--quick", action="store_true", help="one seed and one task")
    parser.add_argument("--cases", help="these alone, healthy and faulty ones among them")
    parser.add_argument("--results", default="results")
    options = parser.parse_args(arguments)
    cases = doctor_check.HEALTHY | doctor_check.FAULTY
    if options.cases:
        cases = {name: cases[name] for name in options.cases.split(",")}
    split = doctor_check.QUICK if options.quick else doctor_check.SCORED
    machine = [f"machine.results={options.results}", "machine.tracking_uri=null"]
    plan = doctor_check.plan_of(*split, cases, machine)
    if code := sweep([plan], options.jobs, report=False):
        return code
    results = Results.open(options.results)
    logs = results.root / "doctor_peers"
    logs.mkdir(exist_ok=True)
    answers = []
    for cell in plan.cells:
        log = logs / f"{cell.signature}.jsonl"
        folder = results.run(cell.signature)
        write_text_atomic(log, "".join(f"{json.dumps(row)}\n" for row in trl_log(folder)))
        case = cell.levels["case"]
        answers.append(
            {
                "planted": case if case in doctor_check.FAULTY else doctor_check.NO_CAUSE,
                "log": str(log),
                OURS: [finding.cause for finding in diagnose_log("trl", log).findings],
                FOLDER: [finding.cause for finding in diagnose(folder).findings],
            }
        )
    asked = subprocess.run(
        [options.peers / "bin" / "python", "-W", "ignore", "-c", ASK, *[answer["log"] for answer in answers]],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    frame = pd.DataFrame(answers).join(pd.DataFrame([json.loads(line) for line in asked.stdout.splitlines()]))
    print(markdown_table(scores(frame)))
    by_cause = pd.DataFrame({tool: frame.apply(lambda run, tool=tool: any(named(run, tool)), axis=1) for tool in TOOLS})
    write_text_atomic(
        results.root / "doctor" / "peers.csv",
        by_cause[frame.planted != doctor_check.NO_CAUSE].groupby(frame.planted).sum().to_csv(),
    )
    return 0


def trl_log(folder: Path) -> Iterator[dict[str, Any]]:
    """The journal of a run folder as rows of TRL's log: one for each optimiser step, what was sampled with the first of
    its batch, and the held-out score as the evaluations that a user of TRL has.
    """
    theirs = {ours: name for name, ours in reversed(LOG_NAMES["trl"].items()) if ours in METRICS}  # newest name counts
    row: dict[str, Any] = {}
    sampled: dict[str, Any] = {}
    for line in (folder / "journal.jsonl").read_text().splitlines():
        record = json.loads(line)
        named = {theirs[key]: value for key, value in record.items() if key in theirs}
        if record["kind"] == "rollout":
            sampled = named
        elif record["kind"] == "update":
            row = {"step": record["optimizer_step"] + 1, **named, **sampled}
            sampled = {}
            yield row
        elif record["kind"] == "evaluation" and row:
            yield {"step": row["step"], "eval_reward": record["eval/accuracy_expected"]}
    outcome = read_json(folder / "outcome.json")
    if outcome["outcome"] == DIVERGED:  # our journal ends before the update that is no number; TRL logs it, and goes on
        yield {"step": row.get("step", 0) + 1, "loss": math.nan, "grad_norm": math.nan}


def named(answer: pd.Series, tool: str) -> list[bool]:
    """For each finding of a tool in one run: does it name what was planted there?"""
    accepted = {answer.planted} if tool in (OURS, FOLDER) else NAMED_BY.get(answer.planted, set())
    return [finding in accepted for finding in answer[tool]]


def scores(answers: pd.DataFrame) -> pd.DataFrame:
    """A row for each tool: faults named, named first, named of those that it is about; healthy runs accused."""
    is_faulty = answers.planted != doctor_check.NO_CAUSE
    rows = []
    for tool in TOOLS:
        hits = pd.Series([named(answer, tool) for _, answer in answers[is_faulty].iterrows()], dtype=object)
        about = answers.planted[is_faulty].map(lambda cause, tool=tool: is_about(tool, cause)).to_numpy()
        accused = answers[tool][~is_faulty].map(bool)
        rows.append(
            {
                "tool": tool,
                "fault named": of(hits.map(any)),
                "named first": of(hits.map(lambda right: right[:1] == [True])),
                "named, of those that it is about": of(hits.map(any)[about]),
                "healthy accused": of(accused),
            }
        )
    return pd.DataFrame(rows)


def is_about(tool: str, cause: str) -> bool:
    """Whether a tool has a finding that names a cause."""
    known = NAMED_BY.get(cause, set())
    return tool in (OURS, FOLDER) or bool(known & {"IDLE_CLIP"} if tool == HARNESS else known - {"IDLE_CLIP"})


def of(right: pd.Series) -> str:
    """`205 of 210`."""
    return f"{int(right.sum())} of {len(right)}"


if __name__ == "__main__":
    sys.exit(main())
