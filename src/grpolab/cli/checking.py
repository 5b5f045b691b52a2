"""Commands that check: a configuration before it trains and our mathematics against others' outputs."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpolab.bounded import read_text
from grpolab.cli.common import FAILURE, JSON, OK, command, count, flag, option, say_result
from grpolab.errors import RequestError, printable
from grpolab.paths import find_file, roots
from grpolab.terminal import say

if TYPE_CHECKING:
    from grpolab.lint.rules import LintFinding
    from grpolab.readers.exchange import Converted
    from grpolab.readers.given import Given
    from grpolab.sweep.plan import Cell

WRITTEN = ("trl", "verl")  # frameworks whose configs are written
# fmt: off
READ = (
    *WRITTEN, "ms-swift", "unsloth", "axolotl", "easyr1", "areal", "deepspeed_chat", "nemo_rl", "open_instruct",
    "openrlhf", "prime_rl", "roll", "skyrl", "slime", "torchtune",
)
# fmt: on


def spell_framework(word: str) -> str:
    """Return a framework's name as READ has it: `NeMo-RL` and `nemo_rl` are one."""
    names = {name.replace("-", "_"): name for name in READ}
    return names.get(word.lower().replace("-", "_"), word)


OF_FILE = {"dest": "framework", "choices": READ, "metavar": "FRAMEWORK", "type": spell_framework}
# What a config file may leave out.
VERSION = option("--version", metavar="X.Y", help="of that framework; default: what FILE fits, the newest first")
PROCESSES = option("--processes", type=count, metavar="N", help="that train, one a GPU, where FILE does not say")


def warn(findings: Sequence[LintFinding], cells: Sequence[Cell]) -> None:
    """Print warnings, and the memory of language models, to stderr. Raises RequestError if a finding is an error."""
    from grpolab.studies.peak_memory import describe

    findings = [finding for finding in findings if finding.severity != "note"]
    if errors := [finding.line for finding in findings if finding.severity == "error"]:
        raise RequestError(errors)
    for finding in findings:
        say(finding.line, error=True)
    for line in describe(cell.settings for cell in cells):
        say(line, error=True)


@command(
    option("overrides", nargs="*", metavar="STUDY|FILE|key=value", help="default: the run of conf/"),
    option("--from", **OF_FILE, help=f"FILE is a config of that framework: {', '.join(READ)}"),
    *(VERSION, PROCESSES, JSON),
    flag("--rules", "print docs/lint.md instead"),
)
def lint(arguments: argparse.Namespace) -> int:
    """Say what a run or a study cannot do, or will do unasked, before it trains."""
    from grpolab.hub import without_the_hub

    if arguments.rules:
        page = find_file("docs", "lint.md").read_text(encoding="utf-8")
        say_result(arguments, {"page": page}, page.rstrip("\n"))
        return OK
    with without_the_hub():
        findings = _findings(arguments)
    say_result(arguments, findings, "\n".join(finding.line for finding in findings) or "nothing to say")
    return FAILURE if any(finding.severity == "error" for finding in findings) else OK


def _is_config(path: Path) -> bool:
    """Return True for a file with a suffix that is no study's, or the folder of a run that kept its config."""
    from grpolab.readers.given import WHOLE_CONFIGS

    if path.is_file() and path.suffix in (".yaml", ".yml"):
        lines = read_text(str(path)).splitlines()
        return not all(any(line.startswith(key) for line in lines) for key in ("question:", ("factors:", "includes:")))
    return (path.is_file() and bool(path.suffix)) or any((path / name).exists() for name in WHOLE_CONFIGS)


def _findings(arguments: argparse.Namespace) -> list[LintFinding]:
    words, framework = arguments.overrides, arguments.framework
    if framework and len(words) != 1:
        raise RequestError(f"lint --from {framework} needs one FILE")
    if framework or (len(words) == 1 and "=" not in words[0] and _is_config(Path(words[0]))):
        from grpolab.lint.config_rules import check_config
        from grpolab.readers.exchange import convert, find_caveats
        from grpolab.readers.recognise import find_family
        from grpolab.sweep.compose import Composer

        given, converted = _converted(arguments, words[0])
        name = given.framework
        default = convert(name, {}, Composer().compose)
        config, usual = ((each.options, each.settings) for each in (converted, default))
        rate, is_reuse_open = find_caveats(given, converted)
        caveats = {"unknown-key": converted.unknown, "value-not-in-file": ", ".join(given.open)}
        return check_config(find_family(name), config, usual, given.options, caveats, rate, is_reuse_open)
    if words and "=" not in words[0]:  # a study, where the first word is no override
        from grpolab.lint.study_rules import check_plans
        from grpolab.sweep.plan import plans

        return check_plans(plans(words[0], words[1:]))
    from grpolab.lint.rules import check_run
    from grpolab.sweep.compose import compose

    return check_run(compose(words))


@command(
    option("file", metavar="FILE", help="a .yaml, .json, .py, .ipynb or .sh as it is; .txt with key=value"),
    option("--from", **OF_FILE, help=f"default: by what only its files have; one of {', '.join(READ)}"),
    *(VERSION, PROCESSES, JSON),
)
def import_(arguments: argparse.Namespace) -> None:
    """Write another framework's config as overrides of ours, and a sentence for each thing that cannot be carried."""
    from grpolab.hub import without_the_hub
    from grpolab.readers.exchange import summarise_file

    with without_the_hub():
        given, converted = _converted(arguments, arguments.file)
    summary = list(filter(None, [given.evidence, *summarise_file(given, converted)]))
    for sentence in summary:
        say(printable(sentence), error=True)
    notes = [sentence for sentence in converted.left_out if sentence in given.notes]
    not_carried = [sentence for sentence in converted.left_out if sentence not in given.notes]
    value = {"framework": given.framework, "overrides": converted.overrides, "not_carried": not_carried}
    value |= {"notes": notes, "defaults": converted.defaults, "summary": summary, "counts": converted.counts}
    say_result(arguments, value, "\n".join(converted.overrides))
    for sentence in converted.left_out:
        say(f"{'note' if sentence in notes else 'not carried'}: {printable(sentence)}", error=True)
    for sentence in converted.defaults:
        say(f"default taken: {printable(sentence)}", error=True)
    say(converted.counts, error=True)


@command(
    option("overrides", nargs="*", metavar="key=value"),
    option("--to", dest="framework", choices=WRITTEN, required=True),
    JSON,
)
def export(arguments: argparse.Namespace) -> None:
    """Write the part of another framework's config that has our run's objective, or the reasons why there is none."""
    from grpolab.hub import without_the_hub
    from grpolab.readers.exchange import export
    from grpolab.sweep.compose import Composer

    compose = Composer().compose  # one Composer for all attempts, because it caches Hydra's presets
    with without_the_hub():
        exported = export(arguments.framework, compose(arguments.overrides), compose)
    value = {"text": exported.text, "differs": exported.remarks, "not_carried": exported.left_out}
    say_result(arguments, value, exported.text)
    for sentence in exported.remarks:
        say(f"a little different there: {sentence}", error=True)
    for sentence in exported.left_out:
        say(f"not carried: {printable(sentence)}", error=True)


def _converted(arguments: argparse.Namespace, file: str) -> tuple[Given, Converted]:
    """Return what a file says, and that in our settings."""
    from grpolab.readers.exchange import convert, read
    from grpolab.sweep.compose import Composer

    given = read(arguments.framework, file)
    version, processes = arguments.version or given.version, arguments.processes or given.processes
    given = replace(given, version=version, processes=processes)
    return given, convert(given.framework, given, Composer().compose)


@command(
    option("path", metavar="PATH", help="archive, folder or .json file (tests/vectors/README.md)"),
    *(flag("--each", "a line for each variant instead of each framework"), JSON),
)
def conformance(arguments: argparse.Namespace) -> int:
    """Replay other frameworks' own outputs through our code, and compare loss, gradient and every metric."""
    from grpolab.frameworks import conformance

    verdicts = list(conformance.replay_archive(Path(arguments.path)))
    text = "\n".join(conformance.format_verdicts(verdicts, arguments.each))
    say_result(arguments, conformance.verdicts_to_json(verdicts), text)
    if not any(verdict.compared for verdict in verdicts):
        say(f"{arguments.path}: nothing was replayed, so that nothing is known to agree", error=True)
        return FAILURE
    return FAILURE if any(verdict.misses for verdict in verdicts) else OK


@command(JSON)
def plugins(arguments: argparse.Namespace) -> int:
    """List the installed packages that add presets, studies and code, and what is wrong with them."""
    from grpolab.studies.plugins import additions, describe

    listed = list(additions())
    say_result(arguments, listed, describe(listed))
    return FAILURE if any(one.problems for one in listed) else OK


@command(
    option("--drift", nargs="?", const="", metavar="FOLDER", help="what moved in installed ones, or checkouts"), JSON
)
def dialects(arguments: argparse.Namespace) -> None:
    """Print what sets the frameworks' defaults, modes and metrics apart (docs/dialects.md), or what moved since."""
    if arguments.drift is not None:
        _drift(arguments)
        return
    from grpolab.frameworks.dialects_page import page
    from grpolab.sweep.compose import Composer

    composer = Composer()
    settings, comments = {}, {}
    for name in composer.groups["dialect"]:
        if (file := composer.conf / "dialect" / f"{name}.yaml").is_file():  # no other package's
            settings[name] = composer.compose([f"dialect={name}"])
            # The comment below the preset's first line, which is Hydra's.
            lines = file.read_text().splitlines()[1:]
            comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
            comments[name] = " ".join(line.removeprefix("#").strip() for line in comment)
    value = {name: {"about": comments[name], "settings": of.model_dump()} for name, of in settings.items()}
    say_result(arguments, value, page(settings, comments).rstrip("\n"))


def _drift(arguments: argparse.Namespace) -> None:
    from grpolab.frameworks.drift import compare, describe

    folder = arguments.drift
    if folder and not Path(folder).is_dir():
        raise RequestError(f"--drift {folder} is not allowed: it must be a folder with a checkout of a framework")
    presets = (roots()[-1] / "conf" / "dialect").glob("*.yaml")
    texts = {file.stem: file.read_text().replace("\n# ", " ") for file in presets}
    read = {name: text.partition("Source: ")[2].partition("), ")[0] + ")" for name, text in texts.items()}
    drifts = list(compare(Path(folder) if folder else None))
    say_result(arguments, drifts, describe(drifts, read))
