"""The frameworks' own outputs through our code: they agree, and where something is wrong the command says what."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import tarfile
import tracemalloc
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from grpolab.cli import main
from grpolab.frameworks import conformance, vectors
from grpolab.frameworks.conformance import replay_archive, replay_cases, replay_variant
from grpolab.frameworks.rounding import OtherLibrary
from grpolab.registry import FRAMEWORKS

PEERS = Path(__file__).parents[1] / "vectors" / "peers.tar.xz"
STEM = "verl__vanilla__asym__c3.0__token-mean"


def test_every_framework_agrees_with_its_own_numbers() -> None:
    verdicts = list(replay_archive(PEERS))
    assert [one.variant for one in verdicts if one.misses] == []
    (left_out,) = (one for one in verdicts if one.agrees is None)
    assert left_out.variant == "verl__adv__optimal_token_baseline"
    assert left_out.unsupported is not None
    assert "vocabulary" in left_out.unsupported, "the reason is a sentence"
    assert {one.variant.partition("__")[0] for one in verdicts} == set(FRAMEWORKS)
    assert sum(len(one.compared) for one in verdicts) > 10_000
    losses = [done for one in verdicts for done in one.compared if done.output in ("loss", "gradient")]
    assert sum(done.error <= 1e-9 for done in losses) / len(losses) > 0.99  # the rest is float32 where it is computed
    counts = conformance.verdicts_to_json(verdicts)
    assert (counts["replayed"], counts["agree"], counts["unsupported"]) == (len(verdicts) - 1, len(verdicts) - 1, 1)


@cache
def texts() -> dict[str, str]:
    """The files of the archive, by name."""
    return vectors.read_texts(PEERS)


def plant(folder: Path, stem: str, case: Any = None, **changes: Any) -> Path:
    """Write one variant of the archive as a file, some keys changed, and `case` in the first case that has a loss."""
    content = json.loads(texts()[f"{stem}.json"])
    content["cases"][2] |= case or {}
    path = folder / f"{stem}.json"
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ({"loss": 0.123}, "the worst is loss of case ragged_wide"),
        ({"loss": float("nan")}, "the worst is loss of case ragged_wide"),
        ({"grad_logprobs": [[0.0] * 6] * 4}, "the worst is gradient of case ragged_wide"),
        ({"metrics": {"actor/pg_clipfrac": 0.5}}, "metric actor/pg_clipfrac"),
        ({"metrics": {"actor/unheard_of": 0.5}}, "metric actor/unheard_of"),
    ],
)
def test_what_disagrees_is_named(
    case: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", str(plant(tmp_path, STEM))]) == 0
    assert main(["conformance", str(plant(tmp_path, STEM, case))]) == 1
    shown = capsys.readouterr().out
    assert says in shown
    assert "0 agree, 1 miss" in shown


def test_what_is_not_replayed_is_named_and_is_neither_a_miss_nor_an_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, STEM, framework="nobody")
    plant(tmp_path, "trl__bnpo__token__sym__beta0.0", function="a.py:compute_other_loss")
    assert main(["conformance", str(tmp_path), "--json"]) == 1, "nothing was replayed"
    counts = json.loads(capsys.readouterr().out)
    assert (counts["replayed"], counts["agree"], counts["unsupported"]) == (0, 0, 2)
    reasons = sorted(one["unsupported"] for one in counts["variants"])
    assert ["nobody" in reasons[0], "compute_other_loss" in reasons[1]] == [True, True]
    assert main(["conformance", str(plant(tmp_path, STEM, cases=[]))]) == 1
    assert "nothing was replayed" in capsys.readouterr().err


AREAL, SKYRL = "areal__decoupled__token_mask_ratio1.04", "skyrl__cispo__token_mean"
SLIME, NEMO_RL = "slime__grpo__klloss_low_var_kl__unbiased1", "nemo_rl__adv__grpo__loo1__norm1"
FLOAT32 = (AREAL, SKYRL, SLIME, NEMO_RL)  # they compute in float32


def test_it_is_the_same_with_another_math_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU whose exp, log and sums end in other last places: the frameworks' float32 explains what differs."""
    outputs = conformance.Case.outputs

    def elsewhere(case: conformance.Case) -> Any:
        with OtherLibrary(seed=99, dtypes=[torch.float32]):
            return outputs(case)

    monkeypatch.setattr(conformance.Case, "outputs", elsewhere)
    variants = map(variant_of, FLOAT32)
    verdicts = [replay_variant(replace(variant, cases=variant.cases[:3])) for variant in variants]
    assert [one.misses for one in verdicts if not one.agrees] == []
    assert max(one.worst("gradient") for one in verdicts) > 1e-8  # the library is another one


@pytest.mark.parametrize(
    ("stem", "output", "error"),
    [
        *((STEM, "loss", 1e-8), (STEM, "gradient", 1e-8), (STEM, "metric actor/ppo_kl", 1e-8)),
        ("verl__adv__reinforce_plus_plus__gamma0.9", "advantages", 1e-8),
        ("trl__adv__sum_then_normalize__group", "advantages", 1e-8),
        (STEM, "metric actor/pg_clipfrac", 1e-6),  # stored as float32
        *((SKYRL, "loss", 1e-6), (SKYRL, "gradient", 1e-6), (AREAL, "loss", 1e-6), (SLIME, "loss", 1e-6)),
    ],
)
def test_a_planted_error_is_seen(stem: str, output: str, error: float) -> None:
    """Plant it in an output's largest number: it exceeds the bound, but for one case at a threshold."""
    seen = []
    for case in cases_of(stem):
        if output not in case.expected or not case.scale(output):
            continue
        original, bound, before = case.expected[output], case.bound(output), case.error(output)
        planted = original.clone()
        planted.view(-1)[original.nan_to_num(0, 0, 0).abs().argmax()] += error * case.scale(output)
        case.expected[output] = planted
        seen.append(case.error(output) > bound and bound + before < error)
        case.expected[output] = original
    assert len(seen) - sum(seen) <= 1 < len(seen)


@cache
def cases_of(stem: str) -> list[conformance.Case]:
    return list(replay_cases(variant_of(stem)))


def variant_of(stem: str) -> vectors.FrameworkVariant:
    with TemporaryDirectory() as folder:
        (variant,) = vectors.read_variants(plant(Path(folder), stem))
    return variant


def test_a_bound_follows_from_the_condition() -> None:
    """Advantages of rewards that hardly differ are mostly rounding in float32; float64 has its own bound."""
    bound = {case.name: case.bound("advantages") for case in cases_of(NEMO_RL)}
    assert bound["tiny_variance"] > 0.1
    assert 1e-8 < bound["negative_rewards"] < 1e-5
    float64 = cases_of("deepspeed_chat__actor_loss_fn__eps0.2")
    assert {case.bound(output) for case in float64 for output in case.expected} == {conformance.FLOAT64}


def test_another_order_of_a_sum_counts_and_a_sum_of_whole_numbers_does_not() -> None:
    terms = torch.tensor([1000.1, -1000.2, 0.3], dtype=torch.float32)
    counts = torch.tensor([1.0, 0.0, 1.0, 1.0])

    def sums() -> dict[str, torch.Tensor]:
        return {"cancels": terms.sum().double(), "counts": counts.mean().double(), "wide": terms.double().sum()}

    spread = conformance.spreads(sums(), sums, [torch.float32])
    assert spread["cancels"] >= torch.finfo(torch.float32).eps * 500
    assert (spread["counts"], spread["wide"]) == (0.0, 0.0)


def test_numbers_that_a_framework_stores_as_float32_are_known_by_all_its_cases() -> None:
    share = torch.tensor(5 / 7).item()  # float32
    metrics = [{"share": share, "half": 0.5, "mean": share}, {"share": 0.0, "half": 0.25, "mean": 0.1}]
    assert conformance.find_float32_outputs([{"metrics": each} for each in metrics]) == {"metric share"}


BOUND = vectors.LARGEST_ARCHIVE >> 3  # unpacked sooner


def pack(mode: str, kind: bytes = tarfile.REGTYPE, **members: bytes) -> bytes:
    """Return a tar archive of JSON files, or of links by these names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=f"w:{mode}") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"{name}.json")
            member.type, member.size = kind, len(content)
            member.linkname = "" if kind == tarfile.REGTYPE else "../secret.json"
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def bomb(mode: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return an archive whose member is longer than the bound, in a few kilobytes."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", 1) if mode == "gz" else lzma.open(packed, "wb", preset=0) as file:
        member = tarfile.TarInfo("notes.txt")
        member.type, member.size = kind, BOUND
        file.write(member.tobuf())
        for _ in range(member.size >> 20):
            file.write(bytes(1 << 20))
    return packed.getvalue()


WHOLE = PEERS.read_bytes()
HOSTILE = {
    "half an archive": (WHOLE[:30_000], "whole tar archive"),
    "half an archive, gz": (pack("gz", a=b"[1]" * 9999)[:60], "whole tar archive"),
    "bits of it": (WHOLE[:20_000] + bytes(99) + WHOLE[20_000:], "whole tar archive"),
    "a symbolic link": (pack("gz", tarfile.SYMTYPE, link=b""), "link.json must be a file"),
    "a hard link": (pack("xz", tarfile.LNKTYPE, link=b""), "link.json must be a file"),
    "deep": (pack("gz", deep=b"[" * 200_000), "deep.json nests too many"),
    "a long number": (pack("gz", long=b"1" * 5000), "long.json has a number of 5000 characters"),
    "no text": (pack("gz", bytes=b"\xff\xfe\xfa"), "bytes.json is no JSON"),
    "a long file": (pack("gz", long=bytes(vectors.LARGEST + 1)), "long.json must be a file of at most 16 MiB"),
    "a bomb, gz": (bomb("gz"), "more than 256 MiB"),
    "a bomb, xz": (bomb("xz"), "more than 256 MiB"),
    "a header that is a bomb": (bomb("gz", tarfile.XHDTYPE), "more than 256 MiB"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_means_harm_is_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "LARGEST_ARCHIVE", BOUND)
    content, says = HOSTILE[name]
    (tmp_path / "vectors.tar").write_bytes(content)
    tracemalloc.start()
    assert main(["conformance", str(tmp_path / "vectors.tar")]) == 2
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (sentence,) = capsys.readouterr().err.splitlines()
    assert says in sentence
    assert most < 2.5 * BOUND, "it is unpacked no further than the bounds"


def test_a_path_without_vectors_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    says = {"absent": "No such file", "text.txt": "whole tar archive", "empty": "no .json file"}
    says |= dict.fromkeys(("pipe.json", "loop.json", "zero.json", "."), "cannot be read")
    for name, sentence in says.items():
        assert main(["conformance", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


KEYS: dict[str, Any] = {"framework": "verl", "variant": "one", "function": "a:b", "options": {}, "cases": []}


@pytest.mark.parametrize(
    "content",
    [
        *("no json", "[]", {}, {name: KEYS[name] for name in ("framework", "function", "options")}),
        *(KEYS | {"cases": cases} for cases in (3, [3], [{}], [{"name": "a", "inputs": 1}])),
        *(KEYS | change for change in ({"options": []}, {"framework": []}, {"function": None}, {"variant": 3})),
    ],
)
def test_a_file_without_the_keys_of_vectors_or_with_other_types_is_one_sentence(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_text(content if isinstance(content, str) else json.dumps(content))
    assert main(["conformance", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "one.json" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "case",
    [
        *({"inputs": inputs} for inputs in ({}, {"logprobs": "x"}, {"logprobs": [], "mask": [1]})),
        *({"loss": "x"}, {"loss": None}, {"grad_logprobs": [[1], [2, 3]]}, {"advantages": {"a": 1}}),
        *({"metrics": [1]}, {"metrics": {"a": "b"}}),
    ],
)
def test_a_case_that_cannot_be_replayed_is_no_traceback(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", str(plant(tmp_path, STEM, case))]) == 1
    shown = capsys.readouterr().out
    assert "not replayed: " in shown or "miss: " in shown
