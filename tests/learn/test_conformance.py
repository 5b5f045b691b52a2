"""The frameworks' own outputs through our code: they agree, and where something is wrong the command says what."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from grpolab.cli import main
from grpolab.learn.conformance.replay import Peer, replay_archive
from grpolab.learn.conformance.summary import not_reproduced_page
from grpolab.paths import project_root
from grpolab.registry import CONFORMANCE, FRAMEWORKS, resolve

PEERS = Path(__file__).parents[1] / "vectors" / "peers.tar.xz"


def test_every_framework_agrees_with_its_own_numbers() -> None:
    verdicts = list(replay_archive(PEERS))
    assert [one.variant for one in verdicts if not one.agrees] == []
    assert [one.variant for one in verdicts if one.unsupported] == ["verl__adv__optimal_token_baseline"]
    assert {one.variant.partition("__")[0] for one in verdicts} == set(FRAMEWORKS)
    assert sum(len(one.compared) for one in verdicts) > 10_000
    losses = [done for one in verdicts for done in one.compared if done.output in ("loss", "gradient")]
    assert sum(done.error <= 1e-9 for done in losses) / len(losses) > 0.99  # the rest is float32 where it is computed


def planted(folder: Path, stem: str, **changes: Any) -> Path:
    """One variant of the archive as a file, the first case that has a loss changed."""
    with tarfile.open(PEERS) as archive:
        file = archive.extractfile(f"{stem}.json")
        assert file is not None
        content = json.loads(file.read())
    content["cases"][2] |= {key: value for key, value in changes.items() if key in ("loss", "metrics", "grad_logprobs")}
    content |= {key: value for key, value in changes.items() if key not in content["cases"][2]}
    path = folder / f"{stem}.json"
    path.write_text(json.dumps(content))
    return path


STEM = "verl__vanilla__asym__c3.0__token-mean"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": 0.123}, "the worst is loss of case ragged_wide"),
        ({"loss": float("nan")}, "the worst is loss of case ragged_wide"),
        ({"grad_logprobs": [[0.0] * 6] * 4}, "the worst is gradient of case ragged_wide"),
        ({"metrics": {"actor/pg_clipfrac": 0.5}}, "metric actor/pg_clipfrac"),
        ({"metrics": {"actor/unheard_of": 0.5}}, "metric actor/unheard_of"),
    ],
)
def test_what_disagrees_is_named(
    changes: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = planted(tmp_path, STEM)
    assert main(["conformance", str(path)]) == 0
    assert main(["conformance", str(planted(tmp_path, STEM, **changes))]) == 1
    shown = capsys.readouterr().out
    assert says in shown
    assert "0 agree, 1 miss" in shown


def test_what_we_do_not_support_is_named_and_no_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted(tmp_path, STEM, framework="nobody")
    planted(tmp_path, "trl__bnpo__token__sym__beta0.0", function="a.py:compute_other_loss")
    assert main(["conformance", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["replayed"], found["unsupported"]) == (0, 2)
    reasons = sorted(one["unsupported"] for one in found["variants"])
    assert reasons == ["framework nobody is unknown here", "function compute_other_loss is unknown here"]


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"framework": "trl", "function": "a:b", "options": {}}'])
def test_a_file_that_is_no_vectors_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.json").write_text(text)
    assert main(["conformance", str(tmp_path)]) == 2
    assert "one.json" in capsys.readouterr().err


def test_a_path_that_is_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("hello")
    for path, says in (("absent", "does not exist"), ("text.txt", "tar archive"), (".", "no .json file")):
        assert main(["conformance", str(tmp_path / path)]) == 2
        assert says in capsys.readouterr().err
    assert main(["conformance"]) == 2
    assert "PATH" in capsys.readouterr().err


def test_the_page_of_what_is_not_reproduced_is_current() -> None:
    assert (project_root() / "docs" / "not_reproduced.md").read_text() == not_reproduced_page()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_reasons_are_sentences(framework: str) -> None:
    peer: Peer = resolve(CONFORMANCE[framework])
    assert all(len(reason.split()) > 8 for reason in peer.not_reproduced.values())
