"""What a command that trains says before and after: its plan, the results of its runs, how they ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from grpolab.paths import Results, project_root
from grpolab.report.text import spans
from grpolab.run_files import Record
from grpolab.studies.facts import TITLES, Facts, average_runs, format_row, read_facts
from grpolab.studies.progress import print_table, send
from grpolab.sweep.jobs import RUN, WARM_START, Job, Request
from grpolab.sweep.ledger import CellState, first_line
from grpolab.sweep.plan import Plan
from grpolab.terminal import say
from grpolab.vocabulary import DAMAGED, FAILED, MISSING, RESULTS


def say_plan(request: Request, todo: Sequence[Job]) -> None:
    """Say how many runs the plans have, and how many are done."""
    states = request.states()
    done = {name for name, state in states.items() if state.outcome is not None}
    studies: list[Record] = [
        {"study": plan.study.name, "cells": len(plan.cells), "seeds": plan.seeds}
        | {"done": sum(cell.signature in done for cell in plan.cells)}
        for plan in request.plans
        if plan.cells
    ]
    kinds, committed = Counter(job.kind for job in todo), sum(state.committed for state in states.values())
    counts = {"runs": len(states), "done": len(states) - kinds[RUN], "committed": committed}
    counts |= {"to_train": kinds[RUN], "warm_starts": kinds[WARM_START]}
    if send("plan", studies=studies, **counts):
        return
    keys = ("study", "cells", "seeds", "done")
    rows = [[spans(study[key]) if key == "seeds" else str(study[key]) for key in keys] for study in studies]
    print_table(keys, rows)
    shared = sum(len(plan.cells) for plan in request.plans) - len(states)
    say(
        f"{counts['runs']} different runs{f' ({shared} cells are shared)' if shared else ''}, {counts['done']} done"
        + (f" ({committed} of them in {request.results.reference})" if committed else "")
        + f", {kinds[RUN]} to train, {kinds[WARM_START]} warm start{'s' * (kinds[WARM_START] != 1)} to make"
    )
    claiming = request.plans[-1:] if request.plans[-1].hypotheses else request.plans  # primary hypotheses stand for all
    if names := [plan.study.name for plan in claiming if not _is_registered(plan)]:
        say(f"exploratory: hypotheses of {', '.join(names)} are not registered with these seeds (`grpolab register`)")


def _is_registered(plan: Plan) -> bool:
    """Return True if every hypothesis is registered with at least one of the plan's seeds."""
    registered = {name for name, entry in plan.registered.items() if set(plan.seeds) & set(entry["seeds"])}
    return registered >= plan.hypotheses.keys()


def say_results(request: Request) -> None:
    """Print a table for each study: the means of each variant over its runs."""
    states = {name: state for name, state in request.states().items() if not state.committed and state.state != DAMAGED}
    outcomes = {name: state.outcome for name, state in states.items() if state.outcome}
    read = {name: request.known.derived(name, "facts", read_facts) for name in outcomes}
    request.known.save()
    for plan in request.plans:
        runs = defaultdict[str, list[tuple[Record, Facts]]](list)
        for cell in plan.cells:
            if cell.signature in outcomes:
                runs[cell.variant].append((outcomes[cell.signature], read[cell.signature][0]))
        rows = {variant: average_runs(pairs) for variant, pairs in runs.items()}
        if rows and not send("results", study=plan.study.name, variants=rows):
            say(f"{plan.study.name}: means over runs")
            print_table(TITLES, [format_row(variant, row) for variant, row in rows.items()])
    rewards = {name: reward for name, (_, reward) in read.items()}
    say_constant_rewards(rewards, request.labels, request.results)


def say_constant_rewards(rewards: Mapping[str, float | None], labels: Mapping[str, str], results: Results) -> None:
    """Say in how many runs every completion had the same reward, which leaves nothing to learn from."""
    unmoved = {name: reward for name, reward in rewards.items() if reward is not None}
    for name, reward in [*unmoved.items()][:1]:
        place = f" in {len(unmoved)} of {len(rewards)} runs, first {labels[name]}" if len(rewards) > 1 else ""
        advice = f"`grpolab diagnose {name}{results_option(results)}` says why"
        say(f"the reward never moved{place}: it is {reward:g} for every completion of the run; {advice}")


def results_option(results: Results) -> str:
    """Return the option that names the results folder for another command; '' for the usual folder."""
    return f" --results {results.root}" if results.root != project_root() / "results" else ""


def say_end(
    states: Mapping[str, CellState],
    labels: Mapping[str, str],
    results: Results,
    places: Sequence[str] = (),
    is_drawn: bool = True,
) -> int:
    """Say how the runs ended, and at which `places` to look. Return the exit code."""
    counts = Counter(state.state for state in states.values())
    runs = "1 run" if len(states) == 1 else f"{len(states)} runs"
    say(f"{runs}: {', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}")
    for name, state in states.items():
        if state.state in (FAILED, DAMAGED):
            say(f"{state.state}: {labels[name]} ({name}): {first_line(state.outcome)}")
    hints = {
        FAILED: f"the whole error: outcome.json in {results.runs}/; --retry-failed runs them again",
        DAMAGED: "damaged runs are left out of every report: --retry-failed trains them anew",
        MISSING: "missing runs have no outcome: the same command goes on with them",
    }
    for state_name, hint in hints.items():
        if counts[state_name]:
            say(hint)
    if places:
        say(f"look: {', '.join(places)}")
    code = 0 if is_drawn and sum(counts[name] for name in RESULTS) == len(states) else 1
    send("end", counts=counts, exit_code=code)
    return code


def ui_command(study: str, results: Results) -> str:
    return f"grpolab ui {study}{results_option(results)}"
