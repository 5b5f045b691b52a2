"""kill -9 at random moments, again and again, and nothing is different in the end: `make test-all WHAT=kill-storm`.

    python tests/faults/kill_storm.py [--kills 20] [--seed 0] [--jobs 2] [--folder FOLDER] [STUDY ...]

Each study is swept once undisturbed, on two workers (`tiny`: its cells are run one after another). Then it is swept in
another folder while a worker, the command itself (its workers die with it) and the mirror process are killed in turn,
and the same command goes on after each death until it ends with 0; when kills are left then, it begins again in a new
folder. At the end of every such round all journals, weights, scores, samples, warm starts and outcomes must equal the
undisturbed ones byte for byte, but for wall times, and `grpolab track verify` must find the MLflow store equal to the
journals. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
GRPOLAB = [sys.executable, "-m", "grpolab"]
# A checkpoint at nearly every rollout boundary, so that kills meet checkpoints, and resume from them.
ALWAYS = ["machine.checkpoint_seconds=0.3"]
UNTRACKED = "machine.tracking_uri=null"
STUDIES: dict[str, list[str]] = {
    "smoke": ["smoke"],
    # A part of the reference: every arm, task and regime, with short runs that reuse each batch in 4 x 2 updates, a
    # rollout step late, so that a sampled batch is in flight at every moment.
    "clip_range": [
        *("clip_range", "--seeds=1", "rollout_steps=6", "num_minibatches=2", "evaluation.every=2"),
        *("evaluation.items=200", "staleness=1", "old_log_probs=sampler"),
        *("warm_start.max_steps=60", "warm_start.batch_size=64", "warm_start.check_items=200"),
    ],
    # Two runs of a second and no mirror, for `make test`.
    "tiny": [
        *("smoke", "--seeds=1", UNTRACKED, "rollout_steps=8", "evaluation.every=2", "evaluation.items=20"),
        *("task.length=3", "model.hidden_size=16", "model.layers=1", "prompts_per_step=2", "num_generations=4"),
        *("warm_start.max_steps=4", "warm_start.check_every=2", "warm_start.check_items=20"),
    ],
}
DEFAULT = ["smoke", "clip_range"]
MODULES = {"worker": "grpolab.sweep.worker", "parent": "grpolab", "mirror": "grpolab.run.tracking"}
WAIT_SECONDS = 5.0  # for a process to kill: a mirror or a worker may not have begun, or have ended
DEATH_SECONDS = 10.0  # in which workers must have died with their parent
MOST_SECONDS = 900.0  # of one session that is left alone
SPARE_SESSIONS = 5

Folders = dict[str, dict[str, bytes]]


class Sweep:
    """A sweep command, its processes and what it has said."""

    def __init__(self, study: str, results: Path, jobs: int = 2) -> None:
        self.results, self.log = results, results.parent / f"{results.name}.jsonl"
        self.said = self.log.stat().st_size if self.log.exists() else 0  # by the sessions before
        options = [f"--jobs={jobs}", "--retry-failed", "--json-lines", *ALWAYS, f"machine.results={results}"]
        self.started = time.time()
        with self.log.open("ab") as log:
            command = [*GRPOLAB, "sweep", *STUDIES[study], *options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def processes(self, role: str) -> list[psutil.Process]:
        """The living children of that role; for `parent` the command itself."""
        try:
            command = psutil.Process(self.process.pid)
            children = command.children()
        except psutil.NoSuchProcess:
            return []
        return [command] if role == "parent" else [child for child in children if MODULES[role] in _words(child)]

    def ended(self, seconds: float | None) -> bool:
        """Wait so long, or (None) until a run has made a step; whether the command has ended by itself."""
        while seconds is None and self.process.poll() is None:
            time.sleep(0.05)
            runs = {event["signature"] for event in self.events() if event.get("kind") == "run"}
            if any(event["event"] == "step" and event["signature"] in runs for event in self.events()):
                return False
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def events(self) -> list[dict[str, Any]]:
        """What this session has said so far."""
        lines = self.log.read_bytes()[self.said :].splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]

    def kill(self, role: str, chance: random.Random) -> str | None:
        """Kill one process of that role, or the command where there is none for seconds; what was killed.

        None where the command ends meanwhile.
        """
        until = time.monotonic() + WAIT_SECONDS
        while not (processes := self.processes(role)) and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.05)
        workers = self.processes("worker")
        if not processes and self.process.poll() is not None:
            return None
        if not processes:
            role, processes = "parent", [psutil.Process(self.process.pid)]
        chance.choice(processes).kill()
        if role == "parent":
            self.process.wait()
            if any(_lives(worker) for worker in psutil.wait_procs(workers, DEATH_SECONDS)[1]):
                raise SystemExit("BROKEN: workers outlive their parent")
        return role

    def where(self) -> str:
        """How far it is, in words."""
        active: dict[str, str] = {}
        for event in self.events():
            if event["event"] in ("started", "step"):
                kind, signature = event.get("kind", "run"), event["signature"]
                active[signature] = f"{kind} begins" if "step" not in event else f"at {event['step']}/{event['steps']}"
            elif event["event"] in ("finished", "returned"):
                active.pop(event["signature"], None)
        return ", ".join(sorted(active.values())) or "between jobs"


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def outcomes(results: Path) -> Folders:
    """Every file of runs and warm starts that must be equal, by folder."""
    found: Folders = {}
    for marker in sorted([*results.glob("runs/*/outcome.json"), *results.glob("warm_starts/*/outcome.json")]):
        outcome = json.loads(marker.read_text()) | {"seconds": None}
        folder = marker.parent
        files = [*folder.glob("samples/*"), *folder.glob("evaluation_items.json")]
        files += [folder / name for name in ("journal.jsonl", "policy.safetensors")]
        contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
        found[str(folder.relative_to(results))] = contents | {"outcome.json": json.dumps(outcome).encode()}
    return found


def differences(calm: Folders, stormy: Folders) -> list[str]:
    """What is not as in the undisturbed sweep."""
    missing = [f"{name} is only in one of the two" for name in calm.keys() ^ stormy.keys()]
    both = [(name, file) for name in calm.keys() & stormy.keys() for file in calm[name].keys() | stormy[name].keys()]
    return missing + [f"{name}/{file} differs" for name, file in both if calm[name].get(file) != stormy[name].get(file)]


def delays(chance: random.Random, sweep_seconds: float, startup_seconds: float, kills: int) -> Iterator[float | None]:
    """Seconds from the start of a command, or from the last kill, to the next kill; a fifth of them within start-up.

    A single kill has no moment to draw: it waits for the first step of a run (None), however fast the machine is.
    """
    if kills == 1:
        yield from repeat(None)
    while True:
        early = chance.random() < 0.2
        work = chance.uniform(0, 3 * (sweep_seconds - startup_seconds) / min(kills, 8))
        yield chance.uniform(0, startup_seconds) if early else startup_seconds + work


def undisturbed(study: str, folder: Path) -> tuple[Folders, float, float]:
    """The outcome of an undisturbed sweep, its seconds, and those before its first job."""
    if study == "tiny":
        return _straight(folder / f"{study}-calm"), 0.0, 0.0
    sweep = Sweep(study, folder / f"{study}-calm")
    if not sweep.ended(MOST_SECONDS) or sweep.process.returncode:
        raise SystemExit(f"BROKEN: the undisturbed sweep did not end with 0: see {sweep.log}")
    first = next(event["time"] for event in sweep.events() if event["event"] == "started")
    return outcomes(sweep.results), time.time() - sweep.started, first - sweep.started


def _straight(results: Path) -> Folders:
    """The outcome of the cells of `tiny`, each run in this process: no second set of processes has to start."""
    from grpolab.paths import Results
    from grpolab.run.train import run
    from grpolab.sweep.plan import plans
    from grpolab.sweep.study import load

    study, _, *overrides = STUDIES["tiny"]
    for plan in plans(study, [*overrides, *ALWAYS, f"machine.results={results}"], load(study).seeds[:1]):
        for cell in plan.cells:
            run(cell.settings, Results.open(results))
    return outcomes(results)


def storm(study: str, folder: Path, kills: int, chance: random.Random, jobs: int) -> list[str]:
    """Kill and go on until all kills are used up and the sweep is done; what is broken."""
    calm, seconds, startup = undisturbed(study, folder)
    print(f"{study}: {len(calm)} folders, {seconds:.0f} s undisturbed, {startup:.1f} s of them before the first job")
    roles, waits = list(islice(cycle(MODULES), kills)), delays(chance, seconds, startup, kills)
    broken, rounds = list[str](), 0
    while roles:
        rounds += 1
        results = folder / f"{study}-storm-{rounds}"
        found = brought_to_its_end(study, results, roles, waits, chance, jobs) or checked(study, calm, results)
        broken += [f"{study}, round {rounds}: {text}" for text in found]
    print(f"{study}: {kills} kills, {rounds} sweeps brought to their end and compared\n")
    return broken


def brought_to_its_end(
    study: str, results: Path, roles: list[str], waits: Iterator[float | None], chance: random.Random, jobs: int
) -> list[str]:
    """The same command again and again, until it ends with 0 and its mirror was left alone; what is broken."""
    for _ in range(len(roles) + SPARE_SESSIONS):
        sweep = Sweep(study, results, jobs)
        killed = strike(sweep, roles, waits, chance)
        if killed[-1:] != ["parent"] and not sweep.ended(MOST_SECONDS):
            sweep.kill("parent", chance)
            return [f"no end within {MOST_SECONDS:.0f} s: see {sweep.log}"]
        code = sweep.process.returncode
        if code == 0 and "mirror" not in killed:  # a mirror's death is said, and the same command catches up
            psutil.wait_procs([one for one in psutil.process_iter() if _mirrors(one, results)], MOST_SECONDS)
            return []
        if code not in (0, 1, -signal.SIGKILL):  # 1: a worker was killed twice over the same cell
            return [f"exit code {code}: see {sweep.log}"]
    return [f"the same command does not come to its end: see {sweep.log}"]


def strike(sweep: Sweep, roles: list[str], waits: Iterator[float | None], chance: random.Random) -> list[str]:
    """Kill what is next in `roles`, and take it off, until the command ends; what was killed."""
    killed: list[str] = []
    while roles and killed[-1:] != ["parent"] and not sweep.ended(next(waits)):
        elapsed, where = time.time() - sweep.started, sweep.where()
        if role := sweep.kill(roles[0], chance):
            killed.append(role)
            roles.pop(0)
            print(f"{len(roles):4} left  {elapsed:6.1f} s  {role:7}  {where}", flush=True)
    return killed


def _mirrors(process: psutil.Process, results: Path) -> bool:
    """Whether it is a mirror of these results that has outlived its command."""
    words = _words(process)
    return MODULES["mirror"] in words and str(results) in words


def checked(study: str, calm: Folders, results: Path) -> list[str]:
    """Differences to the undisturbed sweep, and what the tracking store lacks."""
    if UNTRACKED in STUDIES[study]:
        return differences(calm, outcomes(results))
    verify = [*GRPOLAB, "track", "verify", "--results", str(results)]
    done = subprocess.run(verify, capture_output=True, text=True, cwd=ROOT)
    print(f"      track verify: {(done.stdout + done.stderr).strip().rpartition(chr(10))[2]}")
    ends = [f"track verify ends with {done.returncode}"] if done.returncode else []
    return differences(calm, outcomes(results)) + ends


def main(arguments: list[str] | None = None) -> int:
    """Storm over each study; 1 where something is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[*STUDIES, []], metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--kills", type=int, default=20, help="of all studies together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="workers of the sweeps that are disturbed")
    parser.add_argument("--folder", type=Path, help="an empty folder that is kept; default: one that is deleted")
    given = parser.parse_args(arguments)
    studies = given.studies or DEFAULT
    broken = []
    with tempfile.TemporaryDirectory(prefix="kill-storm-") as temporary:
        for index, study in enumerate(studies):
            kills = given.kills * (index + 1) // len(studies) - given.kills * index // len(studies)
            folder = (given.folder or Path(temporary)).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            broken += storm(study, folder, kills, random.Random(f"{given.seed} {study}"), given.jobs)
    print("\n".join(broken) or f"nothing is lost: kills: {given.kills}; every file equals the undisturbed sweep's")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
