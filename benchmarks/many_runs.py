"""What commands cost beside many finished runs: the first time, again with nothing new, and with ten runs more.

Ten tiny runs of one seed are trained. Their folders stand for the other seeds: each has its own settings, signature,
provenance, journal (the evaluations differ), timing and outcome; the rest is hard links. `benchmarks/README.md` has the
numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from grpolab.known_runs import OF_A_RUN
from grpolab.paths import PYTHON, Results, plain, read_json, write_atomic, write_json_atomic
from grpolab.run.folder import line
from grpolab.run_files import JOURNAL, TIMING
from grpolab.sweep.jobs import Request
from grpolab.sweep.plan import Cell, Plan, plans

STUDY = """
question: What do commands cost beside many finished runs?
overrides: [task=sorting, max_completion_length=6, model.hidden_size=16, model.intermediate_size=32, model.layers=1,
  warm_start.batch_size=64, warm_start.check_items=200, warm_start.max_steps=20, prompts_per_step=4, num_generations=4,
  rollout_steps=24, evaluation.every=4, evaluation.items=100]
factors:
  clip: {symmetric: [], higher: [epsilon_high=0.3], tight: [epsilon=0.1], outer: [delta=2.0], none: [kernel=ratio]}
  task: {four: [task.length=4], five: [task.length=5]}
compare: clip
baseline: symmetric
seeds: 1
primary_metric: eval/accuracy_expected
hypotheses:
  - id: H1
    says: Without clipping, accuracy is lower.
    metric: final_score
    contrast: {of: none, minus: symmetric}
    direction: less
    budget: rollouts
    source: none
figures: [F1, F2]
"""
CELLS = 10  # of a seed
OUTCOME, PROVENANCE, SETTINGS = "outcome.json", "provenance.json", "settings.yaml"
Cost = tuple[float, float]  # wall and CPU seconds of a command, its processes included


def plan_of(file: Path, results: Path, seeds: int) -> Plan:
    """Return the plan of so many seeds."""
    return plans(str(file), [f"machine.results={results}"], list(range(seeds)))[0]


def add_runs(plan: Plan, templates: Plan) -> None:
    """Make a folder of each cell that has none, from that of the first seed, and write the plan."""
    request, trained = Request([plan]), {cell.variant: cell for cell in templates.cells}
    source = Results(Path(templates.cells[0].settings.machine.results))
    for cell in plan.cells:
        if not request.results.run(cell.signature).exists():
            template = trained[cell.variant]
            _copy_warm_start(source.warm_start(template.warm_start), request.results.warm_start(cell.warm_start))
            _copy_run(source.run(template.signature), request.results.run(cell.signature), cell)
    request.write_plans()


def _copy_warm_start(source: Path, target: Path) -> None:
    if not target.exists():
        _link(source, target, but=(OUTCOME,))
        write_json_atomic(target / OUTCOME, {**(read_json(source / OUTCOME) or {}), "signature": target.name})


def _copy_run(source: Path, target: Path, cell: Cell) -> None:
    _link(source, target, but=(SETTINGS, *OF_A_RUN))  # not those: a link changes the times of all that share it
    noise, lines = random.Random(target.name), list[bytes]()
    of_seed = noise.gauss(0, 0.02)
    for text in (source / JOURNAL).read_bytes().splitlines(keepends=True):
        if text.startswith(b'{"kind":"evaluation"'):
            record = json.loads(text)
            for name in ("eval/accuracy_expected", "eval/accuracy_greedy"):
                record[name] = min(1.0, max(0.0, record[name] + of_seed + noise.gauss(0, 0.005)))
            text = line(record)
        lines.append(text)
    journal = b"".join(lines)
    provenance, outcome = read_json(source / PROVENANCE) or {}, read_json(source / OUTCOME) or {}
    provenance["warm_start"]["signature"] = cell.warm_start
    settings = yaml.dump(plain(cell.settings.model_dump()), sort_keys=False, Dumper=yaml.CSafeDumper)
    timing = (source / TIMING).read_bytes()
    for name, content in {SETTINGS: settings.encode(), JOURNAL: journal, TIMING: timing}.items():
        write_atomic(target / name, content, durable=False)
    write_json_atomic(target / PROVENANCE, provenance, durable=False)
    outcome["journal_sha256"] = hashlib.sha256(journal).hexdigest()
    write_json_atomic(target / OUTCOME, outcome, durable=False)


def _link(source: Path, target: Path, but: Sequence[str]) -> None:
    for file in source.rglob("*"):
        if file.is_file() and file.name not in but:
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)


def cost(*command: str | Path) -> Cost:
    """Run a command of the program and return its cost. Raises RuntimeError if it fails."""
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        process = subprocess.Popen([*PYTHON, "-m", "grpolab", *command], stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"grpolab {' '.join(map(str, command))}: {output.read().decode()[-2000:]}")
    return seconds, used.ru_utime + used.ru_stime


def commands(study: Path, results: Path, seeds: int) -> dict[str, list[str | Path]]:
    """Return the commands that are timed, by what the table calls them, in their order."""
    at: list[str | Path] = ["--results", results]
    sweep: list[str | Path] = ["sweep", study, f"machine.results={results}", "--seeds", str(seeds)]
    return {
        "status": ["status", study, *at],
        "report --brief": ["report", study, "--brief", *at],
        "untracked sweep": [*sweep, "machine.tracking_uri=null"],
        "track sync": ["track", "sync", study, *at],
        "sweep": sweep,
        "report": ["report", study, *at],
    }


def measure(study: Path, results: Path, templates: Plan, runs: int, chosen: Sequence[str]) -> None:
    """Make so many runs and time each command at each stage; print a row of the table as it is measured."""
    for stage, seeds in (("first", runs // CELLS), ("again", runs // CELLS), ("ten runs more", runs // CELLS + 1)):
        add_runs(plan_of(study, results, seeds), templates)
        print(f"| {runs:,} | {stage} |", end="", flush=True)
        for name, command in commands(study, results, seeds).items():
            if name in chosen:
                wall, cpu = cost(*command)
                print(f" {wall:.1f} ({cpu:.1f}) |", end="", flush=True)
        print()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, copy, measure and print."""
    names = list(commands(Path(), Path(), 0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000], metavar="N", help="multiples of 10")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="COMMAND", help=", ".join(names))
    parser.add_argument("--folder", type=Path, help="where the results folders are made and deleted")
    options = parser.parse_args(arguments)
    chosen = [name for name in names if name in options.only]
    with tempfile.TemporaryDirectory(prefix="many-runs-", dir=options.folder) as name:
        folder = Path(name)
        study, trained = folder / "many_runs.yaml", folder / "trained"
        study.write_text(STUDY)
        cost("sweep", study, f"machine.results={trained}", "machine.tracking_uri=null", "--seeds", "1")
        print(f"| runs | stage: s (CPU s) | {' | '.join(chosen)} |\n{'| --- ' * (2 + len(chosen))}|", flush=True)
        for runs in options.runs:
            measure(study, folder / f"results-{runs}", plan_of(study, trained, 1), runs, chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
