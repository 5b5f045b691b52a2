"""Find a study by its name or by the path of its file, and its plan in a results folder."""

from __future__ import annotations

from pathlib import Path

from grpolab.errors import RequestError, listing, near_matches
from grpolab.paths import Results, find_file, read_json, roots


def available() -> list[str]:
    """Return the names of the studies in experiments/."""
    return sorted({file.stem for root in roots() for file in (root / "experiments").glob("*.yaml")})


def _is_path(study: str) -> bool:
    return study.endswith((".yaml", ".yml"))


def study_file(study: str) -> Path:
    """Find a study's file by the name of the study or by a path that ends in .yaml.

    A study is called like its file, so no file elsewhere may have the name of a study in experiments/. Raises
    RequestError.
    """
    known, file = available(), Path(study).expanduser()
    if study in known:
        return find_file("experiments", f"{study}.yaml")
    if not _is_path(study):
        beside = f" (did you mean {study}.yaml?)" if Path(f"{study}.yaml").is_file() else near_matches(study, known)
        folders = [str(folder) for root in roots() if (folder := root / "experiments").is_dir()]
        raise RequestError(
            f"study {study} is unknown{beside}: name one of the {len(known)} files of {' and of '.join(folders)},"
            " or the path of a file of your own that ends in .yaml"
        )
    if not file.is_file():
        raise RequestError(f"study {study}: there is no such file")
    if file.stem in known and file.resolve() != find_file("experiments", file.name).resolve():
        raise RequestError(f"study {study}: {file.stem} is a study of experiments/ already: rename the file")
    return file


def within_project(file: Path) -> str:
    """Return a file's path relative to the project or to what comes with the program; absolute if it lies elsewhere."""
    whole = file.resolve()
    inside = [root.resolve() for root in roots() if whole.is_relative_to(root.resolve())]
    return str(whole.relative_to(inside[0])) if inside else str(whole)


def planned_name(results: Results, study: str) -> str:
    """Return the name of a planned study, by its name or by the path of its file.

    Raises RequestError if there is no such file, or no plan of it in the results folder.
    """
    if not _is_path(study):
        return study
    file = study_file(study)
    if not (results.plan(file.stem).is_file() or results.committed_plan(file.stem).is_file()):
        raise not_planned(results, study)
    if problem := find_namesake(results, file.stem, within_project(file)):
        raise RequestError(f"study {study}: {problem}")
    return file.stem


def find_namesake(results: Results, study: str, file: str) -> str:
    """Return a sentence if the study's plan was made from another file; else an empty string."""
    planned = (read_json(results.plan(study)) or {}).get("file", file)
    if planned == file or not find_file(planned).is_file():  # a moved file is the same study
        return ""
    return f"{study} is planned in {results.root} from {planned}: give one of them another name"


def not_planned(results: Results, study: str) -> RequestError:
    """Return the error for a study that has no plan in the results folder."""
    planned = [name for name in results.planned() if name != study]  # its own plan may be here, and its file gone
    if _is_path(study) or study in available():
        return RequestError(f"study {study} is not planned in {results.root}: run `grpolab sweep {study}` first")
    have = f"planned are {listing(planned)}" if planned else "no study is yet; `grpolab sweep STUDY` plans one"
    near = near_matches(study, sorted({*planned, *available()}))
    return RequestError(f"study {study} is not planned in {results.root}{near}: {have}")
