"""The layout of project and results folder, and atomic writing of files by rename."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import re
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from grpolab import FOLDER_FORMAT
from grpolab.credentials import without_secrets_in
from grpolab.errors import Damaged, RequestError

# How every process is started. -P: a random.py in the working directory does not replace Python's own.
PYTHON = (sys.executable, "-P")

# The study whose outcome is committed: it stands at the top of results/. Hours of training.
REFERENCE_STUDY = "claims"
FINDINGS = "findings"  # the collection that the report of REFERENCE_STUDY begins with
# The study of `make sweep`, a part of the committed one: minutes of training.
SWEEP_STUDY = "reference"
# The model of `model=smollm2`, below the project; `make extras WHAT=smollm2` makes it.
SMOLLM2 = Path("results", "models", "smollm2-135m-instruct")
# A run's name is its signature; runs that TRL trained may have a number behind it.
SIGNATURE = re.compile(r"[0-9a-f]{16}(-[1-9][0-9]*)?")
MOST_LETTERS = 100  # of a study's name: files that have it in theirs must have room for more
STUDY_NAME = re.compile(rf"\w[\w.+-]{{0,{MOST_LETTERS - 1}}}")
# The files of a report in `Results.output`, beside figures/ and tables/; the last one is written last.
REPORT_FILES = ("report.html", "gallery.html", "report.md")

# The disk is full, over its quota, read-only or forbidden. That is not the run's failure, so it gets no outcome.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


def is_refusal(error: BaseException, folder: Path) -> TypeGuard[OSError]:
    """Return True if the disk refuses what is written below `folder`."""
    if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
        return False
    return error.filename is None or Path(str(error.filename)).is_relative_to(folder)


def shipped_root() -> Path:
    """Return where the program's own conf/ and experiments/ are: its checkout, or the copy in the package."""
    package = Path(__file__).resolve().parent
    return package.parents[1] if (package.parents[1] / "conf" / "run.yaml").is_file() else package / "shipped"


def project_root() -> Path:
    """Find the user's project: the nearest folder with conf/ and experiments/ at or above the working directory.

    Where there is none it is the program's checkout or, for an installed package, the working directory.
    """
    for folder in [Path.cwd(), *Path.cwd().parents]:
        if (folder / "conf").is_dir() and (folder / "experiments").is_dir():
            return folder
    return Path.cwd() if shipped_root().name == "shipped" else shipped_root()


class Plugin(NamedTuple):
    """An entry point of the group `grpolab`: a package that may have conf/ and experiments/, as a project has."""

    package: str
    version: str
    entry_point: str
    module: str
    folder: Path | None  # the module's; None if there is none


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Find the plugins that are installed. None is imported, so that one that is broken stops no other command."""
    all_of_them = []
    for point in entry_points(group="grpolab"):
        module = point.value.partition(":")[0].strip()
        top, *below = module.split(".")
        spec = None
        with suppress(ImportError, ValueError):
            spec = find_spec(top)
        folder = next((Path(place, *below) for place in (spec and spec.submodule_search_locations) or ()), None)
        package, version = (point.dist.name, point.dist.version) if point.dist else ("", "")
        there = folder if folder and folder.is_dir() else None
        all_of_them.append(Plugin(package, version, point.name, module, there))
    return tuple(sorted(all_of_them))


def roots() -> list[Path]:
    """Return the user's project, the plugins, and what comes with the program.

    A project with a conf/run.yaml of its own stands for what comes with the program.
    """
    project = project_root()
    last = project if (project / "conf" / "run.yaml").is_file() else shipped_root()
    before = {place.resolve(): place for place in (project, *(plugin.folder for plugin in plugins())) if place}
    return [*(place for key, place in before.items() if key != last.resolve()), last]


def find_file(*parts: str) -> Path:
    """Return a file of the project, of a plugin or of what comes with the program; the first's path if none has it.

    Raises RequestError if two have it, because a run or study must mean one thing.
    """
    files = [root.joinpath(*parts) for root in roots()]
    there = [file for file in files if file.is_file()]
    if len(there) > 1:
        raise RequestError(f"{there[0]} and {there[1]} have one name, which must mean one thing: rename one of them")
    return (there or files)[0]


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints about the checkout at `root`; None without git, checkout or answer."""
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def commit(root: Path) -> str | None:
    """Return the commit of a checkout; None outside of one."""
    said = git(root, "rev-parse", "HEAD")
    return said.strip() if said else None


class Results:
    """The results folder and the places in it.

    Names of runs and studies may come from other people's files: a malformed one, which could lead out of the folder,
    raises Damaged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_ours = True  # False: nothing is written into it, not even a cache
        self.runs = root / "runs"  # one folder per run, named by signature
        self.warm_starts = root / "warm_starts"  # the same of warm starts
        self.studies = root / "studies"  # one folder per study
        self.screens = root / "screens"  # answers of `report --brief`, kept until a file behind one changes
        # The committed outcome: compact tables of studies, kept in git; where there is none, that of the program.
        reference, shipped = root / "reference", shipped_root() / "results" / "reference"
        self.reference = shipped if not reference.is_dir() and shipped_root().name == "shipped" else reference
        self.store = root / "mlflow.db"  # MLflow's SQLite file
        self.artifacts = root / "mlartifacts"
        self.geometry = root / "geometry.csv"  # the table behind F9: objective and weight against the ratio
        self.surface = root / "geometry_surface.csv"  # behind F10: the weight over old and new probability

    @classmethod
    def open(cls, root: str | Path) -> Results:
        """Open the folder at `root`, below the project if relative; create it if absent. May raise RequestError."""
        folder = project_root() / Path(root).expanduser()  # an absolute one stays what it is
        marker = folder / "format.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                write_json_atomic(marker, {"format": FOLDER_FORMAT})
            written = json.loads(marker.read_text()).get("format")
        except (OSError, ValueError, AttributeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RequestError(f"machine.results={root} cannot be used: {reason}") from error
        if written != FOLDER_FORMAT:
            raise RequestError(
                f"machine.results={root} has format {written}, this program writes format {FOLDER_FORMAT}:"
                " name another folder, nothing was changed"
            )
        return cls(folder)

    def run(self, signature: str) -> Path:
        """Return the folder of a run."""
        return self._place(self.runs, signature, SIGNATURE, "a run's signature")

    def warm_start(self, signature: str) -> Path:
        """Return the folder of a warm start."""
        return self._place(self.warm_starts, signature, SIGNATURE, "a warm start's signature")

    def plan(self, study: str) -> Path:
        """Return the study's plan.json."""
        return self._study(study) / "plan.json"

    def assessment(self, study: str) -> Path:
        """Return the file of what report and doctor say about each run, for the tracking store."""
        return self._study(study) / "assessment.json"

    def mlflow_runs(self, study: str) -> Path:
        """Return the file that says where MLflow's pages show each run."""
        return self._study(study) / "mlflow.json"

    def planned(self) -> list[str]:
        """Return the names of the studies that have a plan."""
        return sorted(file.parent.name for file in self.studies.glob("*/plan.json"))

    def committed_plan(self, study: str) -> Path:
        """Return the study's plan in the committed reference."""
        return self.reference / "plans" / f"{study}.json"

    def trials(self, study: str) -> Path:
        """Return the table of the trials of the study's tuning."""
        return self._study(study) / "tuning" / "trials.json"

    def output(self, study: str) -> Path:
        """Return the folder of the study's report; that of the committed study is the results folder itself."""
        return self.root if study == REFERENCE_STUDY else self._study(study)

    def _study(self, name: str) -> Path:
        return self._place(self.studies, name, STUDY_NAME, "a study's name")

    def _place(self, folder: Path, name: str, form: re.Pattern[str], what: str) -> Path:
        if not isinstance(name, str) or not form.fullmatch(name):
            raise Damaged(f"{folder}: {name!r} is not {what}, which is like {form.pattern}")
        return folder / name


def write_atomic(path: Path, *content: bytes | memoryview, durable: bool = True) -> None:
    """Write beside the file, flush to disk unless not `durable`, and rename. A failed write changes nothing."""
    with _written(path, content, durable) as part:
        part.replace(path)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file that must not exist yet; return False if another process was faster."""
    with _written(path, (content,), durable=True) as part:
        try:
            os.link(part, path)
            made = True
        except FileExistsError:
            made = part.stat().st_nlink > 1  # a file server repeated the request
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
def _written(path: Path, content: Iterable[bytes | memoryview], durable: bool) -> Iterator[Path]:
    """Write the pieces of a content into a file of a unique name beside `path`; remove it if the block fails."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        try:
            opened = part.open("wb")
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = part.open("wb")
        with opened as file:
            file.writelines(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield part
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text_atomic(path: Path, text: str) -> None:
    """Write text by rename."""
    write_atomic(path, text.encode())


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value as JSON nests it, with the function's result in place of all that is no mapping, list or tuple."""
    if isinstance(value, Mapping):
        return {str(key): map_leaves(item, function) for key, item in value.items()}
    return [map_leaves(item, function) for item in value] if isinstance(value, list | tuple) else function(value)


def plain(value: Any) -> Any:
    """Return a value as strict JSON: infinities and NaN become the strings "inf", "-inf" and "nan"."""
    return map_leaves(value, lambda leaf: str(leaf) if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def write_json_atomic(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write a value as strict JSON by rename."""
    write_atomic(path, json_bytes(value), durable=durable)


def json_bytes(value: Any) -> bytes:
    """Return a value as the bytes of a JSON file, with its secrets masked."""
    return (json.dumps(without_secrets_in(plain(value)), allow_nan=False, indent=1) + "\n").encode()


def open_file(path: str, flags: int) -> int:
    """Open a regular file (an `opener` for `open`): a pipe would block, a device may never end. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no file", path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read the object in a JSON file; None if there is no file, or no complete object in it."""
    try:
        with open(path, opener=open_file) as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
