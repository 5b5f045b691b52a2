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
import secrets
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
from fuzz_studies import WRONG_STUDIES, Wrong
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
        places = ("grpolab.sweep.plan", "grpolab.studies.command_line")
        with patch(f"{places[0]}.Composer", lambda: composer), patch(f"{places[1]}.Composer", lambda: composer):
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
    """Return the verdict on each different request of so many that are drawn."""
    return draw(WRONG, examples, start, lambda wrong: verdict(wrong, folder))


def spoilt(kind: str, examples: int, start: int, template: Template) -> dict[Hostile, tuple[str, float]]:
    """Return the verdict on each different case of a kind, and its seconds."""
    return draw(hostile(kind, template), examples, start, lambda case: fuzz_folders.verdict(case, template))


def draw(strategy: SearchStrategy[Any], examples: int, start: int, judge: Callable[[Any], Any]) -> dict[Any, Any]:
    """Judge each different one of so many that are drawn, the same ones of each `start`."""
    seen: dict[Any, Any] = {}

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
        if drawn not in seen:
            try:
                seen[drawn] = judge(drawn)
            except Exception as error:
                seen[drawn] = f"{type(error).__name__}: {error}"

    each()
    return seen


def main() -> int:
    """Count refusals by kind; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1500, help="of requests")
    parser.add_argument("--cases", type=int, default=900, help="of each kind of spoilt folder")
    parser.add_argument("--only", choices=[*KINDS, "requests"], help="of this kind alone")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="repeats a call; default: a new one")
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}", flush=True)
    kinds = [arguments.only] if arguments.only else ["requests", *KINDS]
    broken = 0
    with tempfile.TemporaryDirectory() as temporary:
        if "requests" in kinds:
            broken += ask_requests(arguments.examples, arguments.seed, Path(temporary, "requests"))
        if kinds := [kind for kind in kinds if kind in KINDS]:
            broken += ask_folders(kinds, arguments.cases, arguments.seed, Path(temporary, "folders"))
    return 1 if broken else 0


def ask_requests(examples: int, start: int, root: Path) -> int:
    """Return the number of broken promises, one of them that torch is not imported."""
    started = time.perf_counter()
    root.mkdir()
    with project(root) as folder:
        seen = verdicts(examples, start, folder)
    counts = Counter((wrong.kind, says) for wrong, says in seen.items() if says in ("refused", "valid"))
    broken = {wrong: says for wrong, says in seen.items() if says not in ("refused", "valid")}
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{counts[kind, 'refused']:5} refused  {counts[kind, 'valid']:3} valid  {kind}")
    for wrong, says in broken.items():
        print(f"BROKEN {wrong.kind}: {wrong.arguments} {dict(wrong.studies)}\n  {says!a}")
    print(
        f"{len(seen)} different requests in {time.perf_counter() - started:.0f} s (valid ones are stopped before they"
        f" start anything), {len(broken)} broken promises; torch was {'' if 'torch' in sys.modules else 'not '}imported"
    )
    return len(broken) + ("torch" in sys.modules)


def ask_folders(kinds: Sequence[str], examples: int, start: int, root: Path) -> int:
    """Return the number of broken promises."""
    started, broken = time.perf_counter(), 0
    with fuzz_folders.trained(root) as template:
        for kind in kinds:
            seen = spoilt(kind, examples, start, template)
            wrong = {case: says for case, (says, _) in seen.items() if says != "fine"}
            for case, says in wrong.items():
                changes = "; ".join(f"{name}: {content!a:.300}" for name, content in case.changes)
                print(f"BROKEN {kind}: {' '.join(case.words)!a:.200}\n  with {changes}\n  {says!a}")
            slowest = max(seconds for _, seconds in seen.values())
            print(f"{len(seen):5} different {kind}, {len(wrong)} broken promises; slowest {slowest:.1f} s", flush=True)
            broken += len(wrong)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.perf_counter() - started:.0f} s: {broken} broken promises, at most {most:.2f} GiB")
    return broken


if __name__ == "__main__":
    sys.exit(main())
