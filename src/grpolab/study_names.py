"""A study given by its name or by the path of its file, and its plan in a results folder."""

from __future__ import annotations

from pathlib import Path

from grpolab.errors import RequestError, near_matches
from grpolab.paths import Results, project_root, read_json


def available() -> list[str]:
    """Return the names of the studies in experiments/."""
    return sorted(file.stem for file in (project_root() / "experiments").glob("*.yaml"))


def _is_path(study: str) -> bool:
    return study.endswith((".yaml", ".yml"))


def study_file(given: str) -> Path:
    """Find a study's file by the name of the study or by a path that ends in .yaml.

    A study is called like its file, so no file elsewhere may have the name of a study in experiments/. Raises
    RequestError.
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


def within_project(file: Path) -> str:
    """Return a file's path relative to the project's root, or its absolute path if it lies elsewhere."""
    root, whole = project_root().resolve(), file.resolve()
    return str(whole.relative_to(root)) if whole.is_relative_to(root) else str(whole)


def planned_name(results: Results, given: str) -> str:
    """Return the name of a study that is given by its name or by its file's path.

    Raises RequestError if there is no such file, or no plan of it in the results folder.
    """
    if not _is_path(given):
        return given
    file = study_file(given)
    if not any(plan.is_file() for plan in (results.plan(file.stem), results.committed_plan(file.stem))):
        raise not_planned(results, given)
    if problem := find_namesake(results, file.stem, within_project(file)):
        raise RequestError(f"study {given}: {problem}")
    return file.stem


def find_namesake(results: Results, study: str, file: str) -> str:
    """Return a sentence if the study's plan was made from another file; else an empty string."""
    planned = (read_json(results.plan(study)) or {}).get("file", file)
    if planned == file or not (project_root() / planned).is_file():  # a moved file is the same study
        return ""
    return f"{study} is planned in {results.root} from {planned}: give one of them another name"


def not_planned(results: Results, given: str) -> RequestError:
    """Return the error for a study that has no plan in the results folder."""
    planned = [name for name in results.planned() if name != given]  # its own plan may be here, and its file gone
    if _is_path(given) or given in available():
        return RequestError(f"study {given} is not planned in {results.root}: run `grpolab sweep {given}` first")
    have = f"planned are {', '.join(planned)}" if planned else "none is, `grpolab sweep STUDY` plans one"
    return RequestError(f"study {given} is not planned in {results.root}{near_matches(given, planned)}: {have}")
