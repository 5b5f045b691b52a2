"""Commands that check our mathematics against what others computed."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from grpolab.cli.common import FAILURE, OK, Add, count, results_of
from grpolab.errors import RequestError


def add_commands(add: Add) -> None:
    """conformance, dialects, self-check."""
    text = "replay other frameworks' own outputs through our code, and compare loss, gradient and every metric"
    sub = add("conformance", _conformance, text, results=False)
    sub.add_argument("path", nargs="?", metavar="PATH", help="archive, folder or .json file (tests/vectors/README.md)")
    sub.add_argument("--each", action="store_true", help="a line for each variant instead of each framework")
    sub.add_argument("--json", action="store_true")
    text = "plant an error in every output instead, 1e-6 where float32 has part in it, else 1e-8: is each seen?"
    sub.add_argument("--sensitivity", action="store_true", help=text)
    sub.add_argument("--not-reproduced", action="store_true", help="print docs/not_reproduced.md instead")
    text = "what sets the frameworks' defaults, modes and metrics apart, as docs/dialects.md"
    add("dialects", _dialects, text, results=False)
    text = "whether the report's statistics keep their promises: simulated studies, and one arm's runs under two names"
    sub = add("self-check", _self_check, text)
    sub.add_argument("study", metavar="STUDY", help="a study whose baseline has runs of 6 seeds or more")
    sub.add_argument("--studies", type=count, default=2000, metavar="N", help="simulated studies of each check (2000)")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the generator (0)")


def _conformance(arguments: argparse.Namespace) -> int:
    from grpolab.learn.conformance import summary
    from grpolab.learn.conformance.replay import plant_in_archive, replay_archive

    if arguments.not_reproduced:
        print(summary.not_reproduced_page(), end="")
        return OK
    if arguments.path is None:
        raise RequestError("conformance needs PATH: an archive, a folder or a .json file of vectors")
    if arguments.sensitivity:
        planted = list(plant_in_archive(Path(arguments.path)))
        print("\n".join(summary.sensitivity_lines(planted)))
        return OK if summary.sensitive(planted) else FAILURE
    verdicts = list(replay_archive(Path(arguments.path)))
    if arguments.json:
        print(json.dumps(summary.as_json(verdicts), indent=1))
    else:
        print("\n".join(summary.lines(verdicts, arguments.each)))
    return OK if all(one.agrees for one in verdicts) else FAILURE


def _dialects(_arguments: argparse.Namespace) -> int:
    from grpolab.learn.dialects.page import page
    from grpolab.sweep.compose import Composer

    composer = Composer()
    names = [name for name in composer.groups["dialect"] if name != "null"]
    settings = {name: composer.compose([f"dialect={name}"]) for name in names}
    print(page(settings, {name: _said_of_itself(composer.conf / "dialect" / f"{name}.yaml") for name in names}), end="")
    return OK


def _self_check(arguments: argparse.Namespace) -> int:
    from grpolab.report import self_check

    checks, page = self_check.write(results_of(arguments), arguments.study, arguments.studies, arguments.seed)
    broken = [check for check in checks if not check.holds]
    for check in broken:
        bounds = f"not between {check.low:.3f} and {check.high:.3f}"
        print(f"{check.name}, n={check.n}: {check.kind} {check.rate:.3f}, {bounds}")
    print(page)
    return FAILURE if broken else OK


def _said_of_itself(preset: Path) -> str:
    """The comment below a preset's first line, which is Hydra's."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), preset.read_text().splitlines()[1:])
    return " ".join(line.removeprefix("#").strip() for line in lines)
