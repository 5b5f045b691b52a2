"""Results folders and archives that came from elsewhere, each spoilt in some way, and a command that reads them.

What is promised of each: an exit code that the command has, no traceback, no control characters on the screen, nothing
written outside of the folder that the command writes to, nothing taken into it through a link, and bounds of time and
memory.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import resource
import shutil
import signal
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from fuzz_damage import AWAY, DEEP, ODD, SECRET, Content, Odd, bytes_changed, changed, file_changed, put, texts, values
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from grpolab.cli import main as grpolab
from grpolab.run.lease import HERE, Lease, end_of_session, is_taken
from grpolab.studies.housekeeping import weights_sha256
from grpolab.sweep.jobs import Request
from grpolab.sweep.plan import plans
from grpolab.terminal import visible

ROOT = Path(__file__).parents[2]
SECONDS, BYTES = 10.0, 2 << 30  # the most that a case may take
CODES = range(4)
STUDY = {
    "question": "What becomes of files that somebody has spoilt?",
    "overrides": [
        *("task=addition", "task.digits=1", "model.hidden_size=8", "model.layers=1", "model.heads=1"),
        *("model.intermediate_size=8", "warm_start.max_steps=1", "warm_start.check_every=1", "warm_start.batch_size=2"),
        *("warm_start.check_items=2", "max_completion_length=3", "prompts_per_step=2", "num_generations=2"),
        *("rollout_steps=2", "num_iterations=2", "diagnostics.samples_every=1"),
        *("evaluation.every=1", "evaluation.items=4", "machine.tracking_uri=null"),
    ],
    "factors": {"clip": {"symmetric": [], "no_clip": ["kernel=ratio"]}},
    "compare": "clip",
    "baseline": "symmetric",
    "seeds": 2,
    "primary_metric": "eval/accuracy_expected",
    "hypotheses": [
        {
            "id": "H",
            "says": "Without clipping, accuracy ends lower.",
            "metric": "final_score",
            "contrast": {"of": "no_clip", "minus": "symmetric"},
            "direction": "less",
            "budget": "rollouts",
            "source": "none",
        }
    ],
    "figures": ["F1"],
}
# In the words of a command: the folder that is spoilt, one that is not, an empty one.
THEIRS, OURS, NEW = "<theirs>", "<ours>", "<new>"


@dataclass(frozen=True)
class Hostile:
    """What is put into a results folder (or beside it), and the command that reads it then."""

    words: tuple[str, ...]
    changes: tuple[tuple[str, Content], ...] = ()
    is_consistent: bool = False  # whoever spoilt a journal or its weights wrote their hash into outcome.json


@dataclass(frozen=True)
class Template:
    """A small study that was trained, where cases are made."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "template"

    def files(self, pattern: str) -> dict[str, bytes]:
        """The files of the results by their place in them."""
        return _read(self.results, pattern)

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.results / folder).iterdir())


@cache
def _read(folder: Path, pattern: str) -> dict[str, bytes]:
    found = sorted(path for path in folder.glob(pattern) if path.is_file() and path.name != "journal.arrow")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@contextlib.contextmanager
def trained(root: Path) -> Iterator[Template]:
    """A project in `root`, which becomes the working directory, with a study that was trained."""
    from grpolab.run.train import run  # here: wrong requests come before, and must not import torch

    (root / "project" / "experiments").mkdir(parents=True)
    (root / "project" / "conf").symlink_to(ROOT / "conf")
    (root / "project" / "experiments" / "mine.yaml").write_text(yaml.safe_dump(STUDY))
    with contextlib.chdir(root / "project"):
        template = Template(root)
        request = Request(plans("mine", [f"machine.results={template.results}"]))
        request.write_plans()
        for cell in request.cells.values():
            assert run(cell.settings, request.results)["outcome"] == "completed"
        assert grpolab(["diff", *template.names("runs")[:2], "--results", str(template.results)]) == 0
        yield template


# --- what a case is --------------------------------------------------------------------------------------------------


def readings(draw: st.DrawFn, template: Template, slow: int = 20) -> tuple[str, ...]:
    """A command that reads THEIRS: there, beside OURS, or to take it over into NEW."""
    first, second = draw(st.permutations(template.names("runs")))[:2]
    there = [
        *(("status",), ("status", "--json"), ("status", "mine"), ("show", first), ("show", first, "--step", "1")),
        *(("diff", first, second), ("diagnose", first), ("diagnose", first, "--json"), ("prune-runs", "--dry-run")),
        *(("report", "--brief", "mine"), ("compare", OURS, "mine"), ("export-reference", "mine"), ("track", "verify")),
    ]
    if draw(st.integers(1, slow)) == 1:
        there = [("figures", "mine"), ("surrogate", "mine")]
    elsewhere = [("runs", "import", THEIRS, "--results", NEW), ("compare", THEIRS, "mine", "--results", OURS)]
    here = draw(st.sampled_from(there))
    return draw(st.sampled_from([*elsewhere, *([(*here, "--results", THEIRS)] * 4)]))


def run_folders(draw: st.DrawFn, template: Template) -> Hostile:
    files = template.files(f"runs/{draw(st.sampled_from(template.names('runs')))}/**/*")
    spoilt = draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2, unique=True))
    changes = [(name, file_changed(draw, name, files[name])) for name in spoilt]
    if draw(st.integers(0, 9)) == 0:  # beside what is there, or in place of a folder
        place = str(Path(spoilt[0]).parent)
        changes.append(draw(st.tuples(st.sampled_from([f"{place}/x", place, "runs/x", "runs"]), st.sampled_from(ODD))))
    return Hostile(readings(draw, template), tuple(changes), draw(st.booleans()))


def changed_plans(draw: st.DrawFn, template: Template) -> Hostile:
    name = "studies/mine/plan.json"
    content = file_changed(draw, name, template.files(name)[name])
    return Hostile(readings(draw, template), ((name, content),))


def single_values(draw: st.DrawFn, template: Template) -> Hostile:
    """One value of a file of JSON, each place in it as likely as another, also the deep ones."""
    patterns = ["studies/mine/plan.json", "runs/*/outcome.json", "runs/*/provenance.json", "runs/*/settings.yaml"]
    name, content = next(iter(template.files(draw(st.sampled_from([*patterns, "warm_starts/*/outcome.json"]))).items()))
    document = yaml.safe_load(content) if name.endswith(".yaml") else json.loads(content)
    place = draw(st.sampled_from(list(places(document))))
    *above, last = place
    part = document
    for key in above:
        part = part[key]
    part[last] = draw(values())
    written = yaml.safe_dump(document) if name.endswith(".yaml") else json.dumps(document)
    return Hostile(readings(draw, template), ((name, written.encode("utf-8", "surrogatepass")),))


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each value in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*place, key)
        yield from places(part, (*place, key))


def warm_starts(draw: st.DrawFn, template: Template) -> Hostile:
    files = template.files("warm_starts/*/*") | template.files("runs/*/provenance.json")
    name = draw(st.sampled_from(sorted(files)))
    content = file_changed(draw, name, files[name])
    if name.endswith("provenance.json") and isinstance(content, bytes):
        written = json.loads(files[name])
        made = changed(draw, written["warm_start"], draw(st.integers(0, 1)))
        content = json.dumps({**written, "warm_start": made}).encode()
    seed = f"seed={draw(st.integers(0, 1))}"
    train = ("train", "--name", "again", *STUDY["overrides"], seed, "learning_rate=0.5", f"machine.results={THEIRS}")
    words = draw(st.sampled_from([("runs", "import", THEIRS, "--results", NEW), train, readings(draw, template)]))
    return Hostile(words, ((name, content),), draw(st.booleans()))


def leases(draw: st.DrawFn, template: Template) -> Hostile:
    """None of another machine that is alive: that one would rightly be waited for."""
    kind = draw(st.sampled_from(["runs", "warm_starts"]))
    folder = f"{kind}/{draw(st.sampled_from(template.names(kind)))}"
    tails = st.sampled_from(["1", "2", "0", "-1", "", "x", "1.5", "1_0", "٣", "²", "9" * 30, " 1", "1 ", "01"])
    holder = {**HERE.holder(), "token": "0" * 32, "pid": 1, "process_start": 1.0}  # the same ones of each seed
    contents = [
        *(json.dumps(changed(draw, holder, 1)).encode(), json.dumps(draw(values())).encode(), b"{}", b"", b"\0" * 99),
        *(bytes_changed(draw, json.dumps(holder).encode()), DEEP.encode(), draw(st.sampled_from(ODD))),
    ]
    tails_of = draw(st.lists(tails, min_size=1, max_size=3, unique=True))
    changes = [(f"{folder}/.lease-{tail}", draw(st.sampled_from(contents))) for tail in tails_of]
    if draw(st.booleans()):  # not done, so that the lease is asked
        changes.append((f"{folder}/outcome.json", Odd("nothing")))
    calls = [(call, f"{THEIRS}/{folder}") for call in CALLS]
    return Hostile(draw(st.sampled_from([*calls, readings(draw, template, 10**6)])), tuple(changes))


CALLS: dict[str, Callable[[Path], Any]] = {  # what workers do with a folder, without waiting for another's lease
    "take": lambda folder: Lease(folder).attempt(),
    "look": is_taken,
    "end": lambda folder: end_of_session(folder, "x"),
}


def names(draw: st.DrawFn, template: Template) -> Hostile:
    """Of studies, runs, variants, arms, in files and on the command line."""
    name = draw(texts())
    plan = json.loads(template.files("studies/mine/plan.json")["studies/mine/plan.json"])
    cell = draw(st.sampled_from(plan["cells"]))
    claim = plan["hypotheses"][0]
    places = [
        *((plan, key) for key in ("study", "question", "title", "compare", "baseline", "primary_metric")),
        *((cell, key) for key in ("variant", "signature")),
        *((cell["levels"], "clip"), (cell["settings"], "task"), (claim, "id"), (claim, "says")),
        (claim["contrast"], "of"),
    ]
    place, key = draw(st.sampled_from(places))
    way = draw(st.sampled_from(["value", "value", "value", "includes", "figures", "folder", "run", "asked"]))
    changes: list[tuple[str, Content]] = []
    words = readings(draw, template, 5 if way == "value" else 20)
    if way == "value":
        place[key] = name
        if place is cell["levels"]:
            plan["factors"]["clip"].append(name)
    elif way in ("includes", "figures"):
        plan[way] = [name] if draw(st.booleans()) else [name, *plan[way]]
    safe = name.encode("utf-8", "replace").replace(b"\0", b"").decode()[:80].strip("/") or "x"
    if way == "folder" and safe not in (".", "..") and "/.." not in safe and not safe.startswith((".", "~")):
        changes = [(f"studies/{safe}/plan.json", json.dumps({**plan, "study": draw(texts())}).encode())]
    elif way == "run" and "/" not in safe and not safe.startswith("."):
        first = template.names("runs")[0]
        files = template.files(f"runs/{first}/*")
        changes = [(f"runs/{safe}/{Path(file).name}", content) for file, content in files.items()]
        words = draw(st.sampled_from([("runs", "import", THEIRS, "--results", NEW), ("status", "--results", THEIRS)]))
    elif way == "asked":
        commands = [
            *((word, name) for word in ("status", "figures", "show", "diagnose", "surrogate", "prune-runs", "compare")),
            *(("report", "--brief", name), ("diff", name, template.names("runs")[0]), ("compare", OURS, name)),
            *(("runs", "import", name), ("export-reference", name), ("track", "verify", name)),
        ]
        asked = draw(st.sampled_from(commands))
        words = (*asked, *(["--dry-run"] if asked[0] == "prune-runs" else []), "--results", THEIRS)
    if way in ("value", "includes", "figures"):
        changes = [("studies/mine/plan.json", json.dumps(plan).encode())]
    return Hostile(words, tuple(changes))


@cache
def _vectors() -> dict[str, bytes]:
    """Three small files of vectors."""
    with tarfile.open(ROOT / "tests" / "vectors" / "peers.tar.xz") as archive:
        files = sorted((m.size, m.name) for m in archive if m.name.startswith(("trl__adv", "areal__adv", "verl__agg")))
        read = {name: archive.extractfile(name) for _, name in files[:3]}
        return {name: file.read() for name, file in read.items() if file}


@cache
def _zeros(way: str) -> bytes:
    """Half a gigabyte of zeros as a member of an archive, which takes no room."""
    text = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=text, mode="wb", compresslevel=1, mtime=0)
        if way == "gz"
        else lzma.open(text, "wb", preset=0) as file
    ):
        member = tarfile.TarInfo("bomb.json")
        member.size = 512 << 20
        file.write(member.tobuf())
        for _ in range(512):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    return text.getvalue()


def archives(draw: st.DrawFn, template: Template) -> Hostile:
    """Files, folders and archives of a framework's outputs."""
    name, whole = draw(st.sampled_from(sorted(_vectors().items())))
    way = draw(st.sampled_from(["file", "file", "folder", "archive", "archive", "archive", "bomb"]))
    content = file_changed(draw, name, whole)
    if isinstance(content, Odd) and way in ("file", "archive"):
        content = DEEP.encode()
    if way in ("file", "folder"):
        more = [("vectors/other.json", draw(st.sampled_from(ODD)))] * draw(st.integers(0, 1)) if way == "folder" else []
        path = "vectors" if way == "folder" else f"vectors/{name}"
        return Hostile(("conformance", f"{THEIRS}/{path}"), ((f"vectors/{name}", content), *more))
    packed = (
        _zeros(draw(st.sampled_from(["gz", "xz"]))) if way == "bomb" else _archive(draw, {name: content, **_vectors()})
    )
    if draw(st.booleans()):
        packed = bytes_changed(draw, packed) if len(packed) < 2**20 else packed[: draw(st.integers(0, len(packed)))]
    path = f"vectors.{draw(st.sampled_from(['tar.xz', 'tar', 'tgz', 'zip', 'json']))}"
    return Hostile(("conformance", f"{THEIRS}/{path}"), ((path, packed),))


def _archive(draw: st.DrawFn, files: Mapping[str, Content]) -> bytes:
    packed = io.BytesIO()
    how: Any = draw(st.sampled_from(["w:", "w:gz", "w:xz", "w:bz2"]))
    kind = draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    with tarfile.open(fileobj=packed, mode=how, format=kind) as archive:
        for name, content in files.items():
            place = draw(st.sampled_from([name, name, f"{draw(st.sampled_from(AWAY))}{name}"]))
            member = tarfile.TarInfo(place.encode("utf-8", "replace").decode())
            text = content if isinstance(content, bytes) else b""
            odd = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
            member.type = draw(st.sampled_from([tarfile.REGTYPE] * 6 + odd))
            member.linkname = draw(st.sampled_from([*AWAY, name, "nobody.json"]))
            member.size = len(text) if member.type == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(text))
    return packed.getvalue()


KINDS: dict[str, Callable[[st.DrawFn, Template], Hostile]] = {
    "run folders": run_folders,
    "plans": changed_plans,
    "values": single_values,
    "warm starts": warm_starts,
    "archives": archives,
    "leases": leases,
    "names": names,
}


def hostile(kind: str, template: Template) -> SearchStrategy[Hostile]:
    """Cases of a kind."""
    return st.composite(KINDS[kind])(template)


# --- what becomes of it ----------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """A case has had its seconds; no handler of the command may swallow this."""


@contextlib.contextmanager
def bounds() -> Iterator[None]:
    """What takes more memory than a case may gets none; what takes longer is ended."""

    def end(*_: object) -> None:
        raise TooLong(f"more than {SECONDS:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, end)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def verdict(case: Hostile, template: Template) -> tuple[str, float]:
    """`fine`, or what is broken; and the seconds that it took."""
    place = template.root / "case"
    shutil.rmtree(place, ignore_errors=True)
    (place / "home").mkdir(parents=True)
    (place / "outside").mkdir()
    (place / "home" / "secret.json").write_text(json.dumps({"outcome": SECRET, "question": SECRET}))
    folders = {THEIRS: place / "theirs", OURS: place / "ours", NEW: place / "new"}
    words = list(case.words)
    for name, folder in folders.items():
        if any(name in word for word in words):
            shutil.copytree(template.results, folder) if name != NEW else folder.mkdir()
            words = [word.replace(name, str(folder)) for word in words]
    for name, content in case.changes:
        with contextlib.suppress(OSError):  # an earlier change has left no such place
            put(folders[THEIRS] / name, content)
    if case.is_consistent:
        _make_consistent(folders[THEIRS])
    (writes,) = (folder for name, folder in folders.items() if name in case.words[-1])
    before, output = _state(place, writes), io.StringIO()
    started = time.perf_counter()
    try:
        with bounds(), contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            code = CALLS[words[0]](Path(words[1])) and 0 if words[0] in CALLS else grpolab(words)
    except SystemExit as ended:
        code = ended.code
    except (Exception, TooLong) as error:
        frames = traceback.extract_tb(error.__traceback__)
        raised = [(Path(frame.filename).name, frame.lineno) for frame in frames if "grpolab" in frame.filename][-3:]
        return f"{type(error).__name__}: {error}"[:300] + f" in {raised}", time.perf_counter() - started
    seconds = time.perf_counter() - started
    said = output.getvalue()
    broken = {
        f"exit code {code}": (code or 0) not in CODES,
        "nothing was said": code not in (0, None) and not said.strip(),
        "a traceback": "Traceback" in said,
        "a control character on the screen": visible(said) != said,
        "something was written outside": _state(place, writes) != before,
        "the secret is on the screen": SECRET in said,
        "the secret was taken over": NEW in case.words and _holds_secret(writes),
    }
    found = [text for text, is_so in broken.items() if is_so]
    return "; ".join(found) + f"\n    {said[-300:]!a}" if found else "fine", seconds


def _make_consistent(folder: Path) -> None:
    """Write the hashes of journals and weights as they are where those of the whole ones stand."""
    for file in [*folder.glob("runs/*/outcome.json"), *folder.glob("warm_starts/*/outcome.json")]:
        journal, weights = file.with_name("journal.jsonl"), file.with_name("policy.safetensors")
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            if file.is_symlink() or not all(path.is_file() for path in (file, journal, weights)):
                continue  # a FIFO would be waited for
            if journal.stat().st_size == 0:
                continue
            of_journal, of_weights = hashlib.sha256(journal.read_bytes()).hexdigest(), weights_sha256(weights)
            hashes = {"journal_sha256": of_journal, "policy_sha256": of_weights, "sha256": of_weights}
            outcome = json.loads(file.read_text())
            file.write_text(json.dumps({key: hashes.get(key, value) for key, value in outcome.items()}))


def _state(place: Path, writes: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a folder, but for what a command may write to."""
    found = {}
    for folder, inner, files in os.walk(place):
        inner[:] = [name for name in inner if Path(folder, name) != writes]
        for name in [*inner, *files]:
            stat = os.lstat(Path(folder, name))
            found[os.path.join(folder, name)] = (stat.st_mode, stat.st_size, 0 if name in inner else stat.st_mtime_ns)
    return found


def _holds_secret(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
    return any(path.is_symlink() or SECRET.encode() in path.read_bytes() for path in files)
