"""Where everything lies, and how files are written: beside their name and renamed, so that nobody reads half of one."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from grpolab import FOLDER_FORMAT
from grpolab.credentials import without_secrets_in
from grpolab.errors import Damaged, RequestError, near_matches

# How every process is started. -P: what lies in the working directory is imported only where a run names it, as in the
# command itself; a random.py of the user's stands in for nothing.
PYTHON = (sys.executable, "-P")

# The study whose outcome is committed: it stands at the top of results/. Hours of training.
REFERENCE_STUDY = "claims"
# What `make sweep` trains: a part of it that takes minutes.
SWEEP_STUDY = "reference"
# The model of `model=smollm2`, below the project; `make extras WHAT=smollm2` makes it.
SMOLLM2 = Path("results", "models", "smollm2-135m-instruct")
# A run's name: its signature; those that TRL trained have a number behind it where there is more than one.
SIGNATURE = re.compile(r"[0-9a-f]{16}(-[1-9][0-9]*)?")
STUDY_NAME = re.compile(r"\w[\w.+-]*")
# What a report consists of, in `Results.output`, beside figures/ and tables/; the last is written last.
REPORT_FILES = ("report.html", "report.md")

# The place refuses to be written: full, over its quota, read-only, forbidden. No run's own fault, so no outcome.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


def is_refusal(error: BaseException, folder: Path) -> TypeGuard[OSError]:
    """Whether the disk refuses what is written below `folder`. A file that the error names must be one of those."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return False
    return error.filename is None or Path(str(error.filename)).is_relative_to(folder)


def project_root() -> Path:
    """The folder with conf/ and experiments/: the nearest one above the working directory, else the installed checkout.

    Raises RequestError where neither is found.
    """
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]]:
        if (folder / "conf" / "run.yaml").is_file() and (folder / "experiments").is_dir():
            return folder
    raise RequestError(f"no conf/run.yaml and experiments/ at or above {Path.cwd()}: run inside a GRPO Lab checkout")


def git(root: Path, *arguments: str) -> str | None:
    """What git says of the checkout at `root`; None where there is no git, no checkout or no answer."""
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def commit(root: Path) -> str | None:
    """The checkout's commit; None where it is none."""
    said = git(root, "rev-parse", "HEAD")
    return said.strip() if said else None


def available() -> list[str]:
    """Names of the studies in experiments/."""
    return sorted(file.stem for file in (project_root() / "experiments").glob("*.yaml"))


def study_file(given: str) -> Path:
    """The file of a study that is given by its name, or by a path that ends in .yaml, seen from the working folder.

    A study is called as its file, wherever that lies: its plan, report and registrations stand under the file's stem.
    So no file elsewhere may have the name of a study in experiments/. Raises RequestError.
    """
    known, folder = available(), project_root() / "experiments"
    file = Path(given).expanduser()
    if given in known:
        return folder / f"{given}.yaml"
    if not _is_path(given):
        beside = f" (did you mean {given}.yaml?)" if Path(f"{given}.yaml").is_file() else near_matches(given, known)
        raise RequestError(
            f"study {given} is unknown{beside}: have {', '.join(known)}, or the path of a file of your own that ends"
            " in .yaml"
        )
    if not file.is_file():
        raise RequestError(f"study {given}: there is no such file")
    if file.stem in known and file.resolve() != (folder / file.name).resolve():
        raise RequestError(f"study {given}: {file.stem} is a study of experiments/ already: rename the file")
    return file


def _is_path(study: str) -> bool:
    return study.endswith((".yaml", ".yml"))


def within_project(file: Path) -> str:
    """A file as commands in the project's root name it: by a relative path where it lies below, else by a whole one."""
    root, whole = project_root().resolve(), file.resolve()
    return str(whole.relative_to(root)) if whole.is_relative_to(root) else str(whole)


def results_folder(root: str | Path) -> Path:
    """The results folder at `root`; a relative path is below the project. Raises as `project_root`."""
    return Path(root) if Path(root).is_absolute() else project_root() / root


class Results:
    """The results folder, and where everything lies in it.

    Names of runs and studies are read from files that others may have written: one that is no such name, and might
    lead out of the folder, raises Damaged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_ours = True  # else it is only read: nothing is written into it, not even a cache
        self.runs = root / "runs"  # one folder per run, named by signature
        self.warm_starts = root / "warm_starts"  # the same of warm starts
        self.content = root / "content"  # hashes of large files that runs name, so that each is read once
        self.studies = root / "studies"  # one folder per study
        self.screens = root / "screens"  # what `report --brief` said, as long as nothing that it is from has changed
        self.reference = root / "reference"  # the committed compact data of the reference outcome
        self.store = root / "mlflow.db"  # MLflow's SQLite file
        self.artifacts = root / "mlartifacts"
        self.geometry = root / "geometry.csv"  # the table behind F9: objective and weight against the ratio
        self.surface = root / "geometry_surface.csv"  # behind F10: the weight over old and new probability

    @classmethod
    def open(cls, root: str | Path) -> Results:
        """The folder at `root` (relative paths: below the project), created if absent.

        Raises RequestError when it cannot be written, or was written in another format.
        """
        folder = results_folder(root)
        marker = folder / "format.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                write_json_atomic(marker, {"format": FOLDER_FORMAT})
            written = json.loads(marker.read_text()).get("format")
        except (OSError, ValueError, AttributeError) as error:
            raise RequestError(f"machine.results={root} cannot be used: {error}") from error
        if written != FOLDER_FORMAT:
            raise RequestError(
                f"machine.results={root} has format {written}, this program writes format {FOLDER_FORMAT}:"
                " name another folder, nothing was changed"
            )
        return cls(folder)

    def run(self, signature: str) -> Path:
        """Folder of a run."""
        return self._place(self.runs, signature, SIGNATURE, "a run's signature")

    def warm_start(self, signature: str) -> Path:
        """Folder of a warm start."""
        return self._place(self.warm_starts, signature, SIGNATURE, "a warm start's signature")

    def plan(self, study: str) -> Path:
        """The study's plan.json."""
        return self._study(study) / "plan.json"

    def assessment(self, study: str) -> Path:
        """What report and doctor say of each run of the study, for the tracking store."""
        return self._study(study) / "assessment.json"

    def planned(self) -> list[str]:
        """Names of the studies that have a plan."""
        return sorted(file.parent.name for file in self.studies.glob("*/plan.json"))

    def name_of(self, given: str) -> str:
        """The name of a study that is given by it, or by its file's path, as `study_file` reads it.

        Raises RequestError where there is no such file, or no plan of it here.
        """
        if not _is_path(given):
            return given
        file = study_file(given)
        if not any(place.is_file() for place in (self.plan(file.stem), self.committed_plan(file.stem))):
            raise self.not_planned(given)
        if problem := self.namesake(file.stem, within_project(file)):
            raise RequestError(f"study {given}: {problem}")
        return file.stem

    def namesake(self, study: str, file: str) -> str:
        """A sentence where the plan here is of another file of that name, which is still there; empty where not."""
        planned = (read_json(self.plan(study)) or {}).get("file", file)
        if planned == file or not (project_root() / planned).is_file():  # a file that was moved is the same study
            return ""
        return f"{study} is planned in {self.root} from {planned}: give one of them another name"

    def not_planned(self, given: str) -> RequestError:
        """What to say where a study that is given by its name or its file's path has no plan here."""
        planned = [name for name in self.planned() if name != given]  # its own plan may be there and lead to no file
        if _is_path(given) or given in available():
            return RequestError(f"study {given} is not planned in {self.root}: run `grpolab sweep {given}` first")
        have = f"planned are {', '.join(planned)}" if planned else "none is, `grpolab sweep STUDY` plans one"
        return RequestError(f"study {given} is not planned in {self.root}{near_matches(given, planned)}: {have}")

    def committed_plan(self, study: str) -> Path:
        """Its plan in the committed reference, which knows the study where there is this file."""
        return self.reference / "plans" / f"{study}.json"

    def trials(self, study: str) -> Path:
        """What a tuning of the study has tried, for the report."""
        return self._study(study) / "tuning" / "trials.json"

    def output(self, study: str) -> Path:
        """Where the study's REPORT_FILES, figures/ and tables/ go: beside the runs for the study that is committed."""
        return self.root if study == REFERENCE_STUDY else self._study(study)

    def _study(self, name: str) -> Path:
        return self._place(self.studies, name, STUDY_NAME, "a study's name")

    def _place(self, folder: Path, name: str, form: re.Pattern[str], what: str) -> Path:
        if not isinstance(name, str) or not form.fullmatch(name):
            raise Damaged(f"{folder}: {name!r} is not {what}, which is like {form.pattern}")
        return folder / name

    def refuse_outside(self, path: Path) -> None:
        """Raises Damaged where a link leads what would be written at `path` out of the results folder.

        The folders at the top may be links themselves, as to a larger disk.
        """
        top = self.root / path.relative_to(self.root).parts[0]
        to = os.path.realpath(path)
        if not Path(to).is_relative_to(os.path.realpath(top)):
            raise Damaged(f"{path} leads out of {top}, to {to}: nothing is written there")


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write, flush to disk, rename. Not `durable`: without the flush, which takes milliseconds and outlasts power cuts.

    A write that fails (a full disk) leaves the file that was there, and nothing else.
    """
    with _written(path, content, durable) as part:
        part.replace(path)


def write_new(path: Path, content: bytes, *, durable: bool = True) -> bool:
    """The same for a file that must not be there yet; False where it is, because another process was faster."""
    with _written(path, content, durable) as part:
        try:
            os.link(part, path)
            made = True
        except FileExistsError:
            made = part.stat().st_nlink > 1  # a server that was asked again, because its answer was lost
        except OSError:  # no hard links here: a reader may see half of the file
            try:
                with path.open("xb") as file:
                    file.write(content)
                made = True
            except FileExistsError:
                made = False
        part.unlink(missing_ok=True)
    return made


@contextmanager
def _written(path: Path, content: bytes, durable: bool) -> Iterator[Path]:
    """The content in a file beside `path` whose name nobody else has; removed where what follows fails."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        try:
            opened = part.open("wb")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = part.open("wb")
        with opened as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield part
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Remove what writers of files below `folder` left when they were killed. No writer may be at work there."""
    for part in folder.rglob("*.part"):
        part.unlink()


def write_text_atomic(path: Path, text: str) -> None:
    """The same for text."""
    write_atomic(path, text.encode())


def plain(value: Any) -> Any:
    """Strict-JSON form of a value: infinities and NaN become the strings "inf", "-inf" and "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def write_json_atomic(path: Path, value: Any, *, durable: bool = True) -> None:
    """The same for strict JSON; infinities become strings."""
    write_atomic(path, json_bytes(value), durable=durable)


def json_bytes(value: Any) -> bytes:
    """A value as it stands in a JSON file, which holds no secrets."""
    return (json.dumps(without_secrets_in(plain(value)), allow_nan=False, indent=1) + "\n").encode()


def write_csv_atomic(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same keys as a table; at least one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(path, text.getvalue())


def open_file(path: str, flags: int) -> int:
    """An `opener` of what somebody may have made: a pipe would be waited for, and a device may never end.

    Raises OSError where it is no file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file", path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file, or no whole object in it."""
    try:
        with open(path, opener=open_file) as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
