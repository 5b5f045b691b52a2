"""Wrong requests by the thousand: `make fuzz` (`python tests/faults/fuzz.py --examples 1500`).

Each request is wrong by construction: a way to break something (`fuzz_overrides.py`, `fuzz_studies.py`) is drawn and
applied to something valid. What is promised of each: exit code 2, sentences that name the key or the value, no
traceback, and not a byte written. The command is stopped where it would write its first plan, so a request that is
valid after all (only free text can be) starts nothing either; it is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from fuzz_overrides import WRONG_OVERRIDES
from fuzz_studies import WRONG_STUDIES
from fuzz_wrong import Wrong
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

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

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # what it finds is short already
        suppress_health_check=list(HealthCheck),
    )
    @given(WRONG)
    def ask(wrong: Wrong) -> None:
        if wrong in found:
            return
        try:
            found[wrong] = verdict(wrong, folder)
        except Exception as error:
            found[wrong] = f"{type(error).__name__}: {error}"

    ask()
    return found


def main() -> int:
    """Count refusals by kind; exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary, project(Path(temporary)) as folder:
        seen = verdicts(arguments.examples, arguments.seed, folder)
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
    return 1 if broken or "torch" in sys.modules else 0


if __name__ == "__main__":
    sys.exit(main())
