"""Commands about a configuration before it trains: what it cannot do, and what it is called elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpolab.cli.common import FAILURE, OK, Add
from grpolab.errors import RequestError

if TYPE_CHECKING:
    from grpolab.exchange.peer import Converted, Peer
    from grpolab.lint.rule import Finding
    from grpolab.sweep.plan import Plan

PEERS = ("trl", "verl")


def add_commands(add: Add) -> None:
    """lint, import, export."""
    text = "what a run or a study cannot do, or will do unasked, before it trains"
    lint = add("lint", _lint, text, results=False)
    lint.add_argument("overrides", nargs="*", metavar="STUDY|FILE|key=value", help="default: the run of conf/")
    lint.add_argument("--from", dest="peer", choices=PEERS, help="FILE is a config of that framework")
    lint.add_argument("--json", action="store_true")
    lint.add_argument("--rules", action="store_true", help="print docs/lint.md instead")
    text = "another framework's config as overrides of ours, and a sentence for each thing that cannot be carried"
    read = add("import", _import, text, results=False)
    read.add_argument("file", metavar="FILE", help=".yaml, .json, .py with GRPOConfig(...), .sh or .txt with key=value")
    read.add_argument("--from", dest="peer", choices=PEERS, required=True)
    text = "the fragment of another framework's config that has our run's objective, or the reasons why there is none"
    write = add("export", _export, text, results=False)
    write.add_argument("overrides", nargs="*", metavar="key=value")
    write.add_argument("--to", dest="peer", choices=PEERS, required=True)


def warn(plans: Sequence[Plan]) -> None:
    """Print what is worth a word before a sweep, to stderr; raises RequestError where something is an error."""
    from grpolab.lint.check import check_plans

    found = [finding for finding in check_plans(plans) if finding.severity != "note"]
    if errors := [finding.line for finding in found if finding.severity == "error"]:
        raise RequestError(errors)
    for finding in found:
        print(finding.line, file=sys.stderr)


def _lint(arguments: argparse.Namespace) -> int:
    if arguments.rules:
        from grpolab.lint.page import page

        print(page(), end="")
        return OK
    found = _foreign(arguments) if arguments.peer else _ours(arguments.overrides)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    elif found:
        print("\n".join(finding.line for finding in found))
    else:
        print("nothing to say")
    return FAILURE if any(finding.severity == "error" for finding in found) else OK


def _ours(words: list[str]) -> list[Finding]:
    """Findings about a study, where the first word is no override, or about one run."""
    from grpolab.lint.check import check_plans, check_run
    from grpolab.sweep.compose import compose
    from grpolab.sweep.plan import plans

    if words and "=" not in words[0]:
        return check_plans(plans(words[0], words[1:]))
    return check_run(compose(words))


def _foreign(arguments: argparse.Namespace) -> list[Finding]:
    """Findings about another framework's config."""
    from grpolab.lint.check import check_run, check_trl

    if len(arguments.overrides) != 1:
        raise RequestError(f"lint --from {arguments.peer} needs one FILE")
    converted = _converted(_peer(arguments.peer), arguments.overrides[0])
    if arguments.peer == "trl":
        return check_trl(converted.options, converted.settings)
    return check_run(converted.settings)


def _import(arguments: argparse.Namespace) -> int:
    converted = _converted(_peer(arguments.peer), arguments.file)
    print("\n".join(converted.overrides))
    for sentence in converted.left_out:
        print(f"not carried: {sentence}", file=sys.stderr)
    return OK


def _export(arguments: argparse.Namespace) -> int:
    from grpolab.exchange.peer import export
    from grpolab.sweep.compose import compose

    exported = export(_peer(arguments.peer), compose(arguments.overrides))
    print(exported.text)
    for sentence in exported.remarks:
        print(f"a little different there: {sentence}", file=sys.stderr)
    return OK


def _converted(peer: Peer, file: str) -> Converted:
    from grpolab.exchange.document import read
    from grpolab.exchange.peer import convert

    return convert(peer, read(file))


def _peer(name: str) -> Peer:
    from grpolab.exchange import trl, verl

    peers = {peer.name: peer for peer in (trl.PEER, verl.PEER)}
    return peers[name]
