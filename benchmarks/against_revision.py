"""Whole runs of this tree against those of an earlier revision, alternated: CPU time, and what updates spend on GEMMs.

.venv/bin/python benchmarks/against_revision.py REVISION [--tasks addition sorting filler_sorting] [--rounds 5]

Each tree has a process of its own with a sweep worker's environment; warm starts are not timed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GEMMS = ("aten::mm", "aten::addmm", "aten::bmm")
PROFILED = range(40, 50)  # updates of a run of their own
# What a process does for each line that it is sent: a task, and whether to profile.
SERVER = """
import shutil, sys, time
import torch
torch.set_num_threads(1)
from grpolab.settings.resolved import resolve_run
from grpolab.grpo import step
from grpolab.identity import signature
from grpolab.paths import Results
from grpolab.run import warm_start
from grpolab.run.train import run
from grpolab.sweep.compose import compose
from torch.profiler import ProfilerActivity, profile
results, gemms, (first, last) = Results.open(sys.argv[1]), sys.argv[2].split(","), map(int, sys.argv[3:5])
update, count, spent = step.Learner.update, 0, [0.0, 0.0, 0]
def profiled(*arguments, **options):
    global count
    count += 1
    if not first <= count <= last:
        return update(*arguments, **options)
    begun = time.process_time()
    if count % 2:  # every other one without the profiler, which slows it down
        found = update(*arguments, **options)
        spent[1] += time.process_time() - begun
        spent[2] += 1
        return found
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        found = update(*arguments, **options)
    spent[0] += sum(e.self_cpu_time_total for e in seen.key_averages() if e.key in gemms) / 1e6
    return found
for line in sys.stdin:
    task, profiling, *overrides = line.split()
    settings = resolve_run(compose([f"task={task}", "seed=7", "device=cpu", "machine.tracking_uri=null", *overrides]))
    warm_start.ensure(settings, results)
    shutil.rmtree(results.run(signature(settings.identity())), ignore_errors=True)
    step.Learner.update, count, spent[:] = profiled if profiling == "1" else update, 0, [0.0, 0.0, 0]
    begun = time.process_time()
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome
    if profiling == "1":
        print(spent[1] / spent[2], spent[0] / (last - first + 1 - spent[2]), flush=True)
    else:
        print(time.process_time() - begun, flush=True)
"""


def main() -> None:
    """Measure and print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--tasks", nargs="+", default=["addition", "sorting", "filler_sorting"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--now", nargs="+", default=[], metavar="key=value", help="of this tree's runs: compile=true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "worktree"
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", before, given.revision], check=True
        )
        try:
            measure(Path(folder), {"before": before, "now": ROOT}, given.tasks, given.rounds, given.now)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", before], check=True)


def measure(folder: Path, trees: dict[str, Path], tasks: list[str], rounds: int, now: list[str]) -> None:
    """Both trees' runs of each task, in turn; the first round is not counted."""
    sys.path.insert(0, str(ROOT / "src"))
    from grpolab.sweep.pool import KEEP_MEMORY

    processes = {}
    for name, tree in trees.items():
        for part in ("src", "conf", "experiments", "requirements"):
            shutil.copytree(tree / part, folder / name / part)
        shutil.copy(tree / "pyproject.toml", folder / name)
        given = [str(folder / f"results-{name}"), ",".join(GEMMS), str(PROFILED.start), str(PROFILED.stop - 1)]
        environment = {**os.environ, **KEEP_MEMORY, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / name / "src")}
        processes[name] = subprocess.Popen(
            [sys.executable, "-c", SERVER, *given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder / name, env=environment,
        )  # fmt: skip

    def ask(name: str, task: str, profiling: int) -> list[float]:
        process = processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join([task, str(profiling), *(now if name == "now" else [])]) + "\n")
        process.stdin.flush()
        return [float(value) for value in process.stdout.readline().split()]

    for task in tasks:
        seconds: dict[str, list[float]] = {name: [] for name in trees}
        for round_ in range(rounds + 1):
            for name in trees:
                (cpu,) = ask(name, task, 0)
                seconds[name] += [cpu] if round_ else []
        ratio = statistics.median(a / b for a, b in zip(seconds["before"], seconds["now"], strict=True))
        median = {name: statistics.median(values) for name, values in seconds.items()}
        spent = {name: ask(name, task, 1) for name in trees}
        shares = [f"{1000 * update:.0f} ms, {gemms / update:.0%} GEMMs" for update, gemms in spent.values()]
        whole = f"a run {median['before']:.1f} -> {median['now']:.1f} CPU s, {ratio:.2f}x"
        print(f"{task}: {whole}; an update {' -> '.join(shares)}", flush=True)
    for process in processes.values():
        process.kill()


if __name__ == "__main__":
    main()
