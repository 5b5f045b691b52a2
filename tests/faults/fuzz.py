"""Wrong requests and spoilt folders by the thousand: `make test-all WHAT=fuzz`.

`fuzz_folders.py` says what is promised of a folder or an archive that somebody has spoilt. Each request is wrong by
construction: a way to break something (`fuzz_overrides.py`, `fuzz_studies.py`) is drawn and applied to something valid.
What is promised of each: exit code 2, sentences that name the key or the value, no traceback, and not a byte written.
The command is stopped where it would write its first plan, so a request that is valid after all (only free text can be)
starts nothing either; it is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fuzz_folders
from fuzz_folders import KINDS, Hostile, Template, hostile
from fuzz_overrides import WRONG_OVERRIDES
from fuzz_studies import WRONG_STUDIES
from fuzz_wrong import Wrong
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from grpolab.cli import main as grpolab
from grpolab.sweep.compose import Composer
from grpolab.sweep.jobs import Request

ROOT = Path(__file__).parents[2]
WRONG = st.one_of([*WRONG_OVERRIDES, *WRONG_STUDIES])
LONGEST_LINE = 2000
BEFORE = {"format.json": b'{"format": 1}\n', "runs/0123456789abcdef/outcome.json": b"{}\n"}


class Valid(BaseException):
    """The command came to where it would have started; no handler of the command may swallow this."""


@contextlib.contextmanager
def project(folder: Path) -> Iterator[Path]:
    """A project with the real conf/, results that must stay as they are, and a command that stops before it starts."""

    def stop(_request: Request, _retry_failed: bool = False) -> None:
        raise Valid

    (folder / "conf").symlink_to(ROOT / "conf")
    (folder / "experiments").mkdir()
    for name, content in BEFORE.items():
        (folder / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "results" / name).write_bytes(content)
    with contextlib.chdir(folder), patch.object(Request, "write_plans", stop):
        composer = Composer()  # one for all: conf/ stays as it is, and reading it takes longer than all the rest
        with patch("grpolab.sweep.plan.Composer", lambda: composer):
            yield folder


def verdict(wrong: Wrong, folder: Path) -> str:
    """`refused` as promised, `valid`, or what is broken. Exceptions of the command are let through."""
    _write_studies(wrong, folder / "experiments")
    before, errors, output = _content(folder), io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            code = grpolab(list(wrong.arguments))
    except Valid:
        return "accepted, although it is wrong" if wrong.certain else "valid"
    lines = errors.getvalue().splitlines()
    broken = {
        f"exit code {code}": code != 2,
        "something was written": _content(folder) != before,
        "something was printed": output.getvalue() != "",
        "no sentence": not lines,
        "a line is no sentence of grpolab": not all(
            line.startswith("grpolab: ") and line.isprintable() for line in lines
        ),
        "a sentence stands twice": len(set(lines)) < len(lines),
        "a sentence is a page": any(len(line) > LONGEST_LINE for line in lines),
        f"no sentence names any of {wrong.names}": not any(name in line for name in wrong.names for line in lines),
    }
    found = [text for text, is_so in broken.items() if is_so]
    return "; ".join(found) + "".join(f"\n    {line[:300]}" for line in lines) if found else "refused"


def _write_studies(wrong: Wrong, folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    for name, content in wrong.studies.items():
        (folder / f"{name}.yaml").write_bytes(content)


def _content(folder: Path) -> dict[str, bytes]:
    """Every file of the project and what is in it; conf/ is a link, which is not followed."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(folder / "conf")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def verdicts(examples: int, start: int, folder: Path) -> dict[Wrong, str]:
    """The verdict on each different request of so many that are drawn; an exception's text where the command raised."""
    found: dict[Wrong, str] = {}

    def ask(wrong: Wrong) -> None:
        if wrong in found:
            return
        try:
            found[wrong] = verdict(wrong, folder)
        except Exception as error:
            found[wrong] = f"{type(error).__name__}: {error}"

    draw(WRONG, examples, start, ask)
    return found


def spoilt(kind: str, examples: int, start: int, template: Template) -> dict[Hostile, tuple[str, float]]:
    """The verdict on each different case of a kind, and its seconds."""
    found: dict[Hostile, tuple[str, float]] = {}

    def ask(case: Hostile) -> None:
        if case not in found:
            found[case] = fuzz_folders.verdict(case, template)

    draw(hostile(kind, template), examples, start, ask)
    return found


def draw(strategy: SearchStrategy[Any], examples: int, start: int, ask: Callable[[Any], None]) -> None:
    """Ask of so many that are drawn, the same ones of each `start`."""

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # what it finds is short already
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(drawn: Any) -> None:
        ask(drawn)

    each()


def main() -> int:
    """Count refusals by kind; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1500, help="of requests")
    parser.add_argument("--cases", type=int, default=900, help="of each kind of spoilt folder")
    parser.add_argument("--only", choices=[*KINDS, "requests"], help="of this kind alone")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else ["requests", *KINDS]
    with tempfile.TemporaryDirectory() as temporary:
        broken = (
            ask_requests(arguments.examples, arguments.seed, Path(temporary, "requests")) if "requests" in kinds else 0
        )
        kinds = [kind for kind in kinds if kind in KINDS]
        if kinds:
            broken += ask_folders(kinds, arguments.cases, arguments.seed, Path(temporary, "folders"))
    return 1 if broken else 0


def ask_requests(examples: int, start: int, root: Path) -> int:
    """The number of broken promises, one of them that torch is not imported."""
    started = time.perf_counter()
    root.mkdir()
    with project(root) as folder:
        seen = verdicts(examples, start, folder)
    refused, valid = (Counter(wrong.kind for wrong in seen if seen[wrong] == as_) for as_ in ("refused", "valid"))
    broken = {wrong: found for wrong, found in seen.items() if found not in ("refused", "valid")}
    for kind in sorted(refused | valid):
        print(f"{refused[kind]:5} refused  {valid[kind]:3} valid  {kind}")
    for wrong, found in broken.items():
        print(f"BROKEN {wrong.kind}: {wrong.arguments} {dict(wrong.studies)}\n  {found!a}")
    print(
        f"{len(seen)} different requests in {time.perf_counter() - started:.0f} s: {refused.total()} refused,"
        f" {valid.total()} valid after all (stopped before anything started), {len(broken)} broken promises;"
        f" torch was {'' if 'torch' in sys.modules else 'not '}imported"
    )
    return len(broken) + ("torch" in sys.modules)


def ask_folders(kinds: Sequence[str], examples: int, start: int, root: Path) -> int:
    """The number of broken promises."""
    started, cases, broken = time.perf_counter(), 0, 0
    with fuzz_folders.trained(root) as template:
        for kind in kinds:
            seen = spoilt(kind, examples, start, template)
            wrong = {case: found for case, (found, _) in seen.items() if found != "fine"}
            slowest = max(seen, key=lambda case: seen[case][1])
            for case, found in wrong.items():
                changes = "; ".join(f"{name}: {content!a:.300}" for name, content in case.changes)
                print(f"BROKEN {kind}: {' '.join(case.words)!a:.200}\n  with {changes}\n  {found!a}")
            longest = f"the slowest {seen[slowest][1]:.1f} s (`{' '.join(slowest.words)[:60]!a}`)"
            print(f"{len(seen):5} different {kind}, {len(wrong)} broken promises; {longest}", flush=True)
            cases, broken = cases + len(seen), broken + len(wrong)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - started
    print(
        f"{cases} different folders and archives in {seconds:.0f} s: {broken} broken promises, at most {most:.2f} GiB"
    )
    return broken


if __name__ == "__main__":
    sys.exit(main())
