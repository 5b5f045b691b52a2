"""`show` and `diff` say what the files say."""

import json
import shutil

import pandas as pd
import pytest
import yaml
from report_results import write_study

from grpolab.errors import RequestError
from grpolab.report.inspect import diff, find_run, show

TOKENS = pd.DataFrame(
    {
        **{"prompt_index": [0, 0, 0, 1], "sample": [0, 0, 1, 0], "position": [0, 1, 0, 0]},
        **{"prompt": ["1+1=", "1+1=", "1+1=", "2+2="], "completion": ["2", "2", "", "4"]},
        **{"reward": [0.75, 0.75, 0.25, 0.75], "reward_correct": [0.5, 0.5, 0.25, 0.5]},
        **{"reward_format": [0.25, 0.25, 0.125, 0.25], "advantage": [0.7, 0.7, -0.7, 0.0]},
        **{"token": ["2", "<end>", "<end>", "4"], "old_log_prob": [-1.0] * 4},
        **{"ratio": [1.25, 1.0, 0.5, 1.0], "clipped": ["high", "", "low", ""]},
    }
)


@pytest.fixture
def study(tmp_path):
    """Two arms, three seeds; run folders with settings and, in the first, a table of completions."""
    results = write_study(tmp_path, factors={"clip": ["symmetric", "no_clip"], "task": ["addition"]})
    cells = json.loads(results.plan("clip_range").read_text())["cells"]
    for cell in cells:
        settings = {"seed": cell["seed"], "kernel": cell["settings"]["kernel"], "evaluation": {"every": 3}}
        (results.run(cell["signature"]) / "settings.yaml").write_text(yaml.safe_dump(settings))
        shutil.rmtree(results.run(cell["signature"]) / "samples")
    folder = results.run(cells[0]["signature"]) / "samples"
    folder.mkdir()
    TOKENS.to_parquet(folder / "step_000005.parquet")
    return results, [cell["signature"] for cell in cells]


def test_show_prints_rewards_advantages_ratios_and_marks(study):
    results, names = study
    _, text = show(results, names[0], None, prompts=1)
    assert "rollout step 5" in text
    assert "prompt '1+1='" in text
    assert "0: '2'  reward 0.750 (correct 0.500, format 0.250), advantage +0.700" in text
    assert "2:1.250^  <end>:1.000" in text
    assert "<end>:0.500v" in text
    assert "2+2=" not in text
    assert "2+2=" in show(results, names[0], 5, prompts=2)[1]


@pytest.mark.parametrize(
    ("level", "columns", "lines"),
    [  # the root of 1.25; in segments, whose marks differ, each token has its own
        *(
            (
                level,
                {"clipped": ["high", "high", "low", ""]},
                ["sequence:1.11803^  of tokens: 2:1.250  <end>:1.000", "sequence:0.50000v  of tokens: <end>:0.500"],
            )
            for level in ("sequence", "sequence_token")
        ),
        (
            "segment",
            {"sample": [0, 0, 0, 0], "position": [0, 1, 3, 0], "ratio": [1.21, 1.0, 0.5, 1.0]},
            ["segment:1.10000  of tokens: 2:1.210^  <end>:1.000", "segment:0.50000v  of tokens: <end>:0.500"],
        ),
    ],
)
def test_show_prints_the_ratio_that_was_clipped_and_labels_its_tokens(study, level, columns, lines):
    results, names = study
    folder = results.run(names[0])
    (folder / "settings.yaml").write_text(yaml.safe_dump({"importance_sampling_level": level}))
    TOKENS.assign(**columns).to_parquet(folder / "samples" / "step_000005.parquet")
    shown = show(results, names[0], None, prompts=1)[1].splitlines()
    assert shown[1].startswith(f"{lines[0][:7]}")
    assert "geometric mean of its tokens' ratios" in shown[2]
    assert [line.strip() for line in shown if " of tokens: " in line] == lines


def test_show_refuses_a_step_that_was_not_kept(study):
    results, names = study
    with pytest.raises(RequestError, match="--step 6 was not kept: have 5"):
        show(results, names[0], 6, prompts=1)
    with pytest.raises(RequestError, match="kept no completions"):
        show(results, names[1], None, prompts=1)


def test_a_run_is_found_by_prefix_or_folder(study):
    results, names = study
    assert find_run(results, names[0][:8]).name == names[0]
    assert find_run(results, str(results.run(names[0]))) == results.run(names[0]).resolve()
    for wrong in ("", "xyz"):
        with pytest.raises(RequestError, match="is unknown"):
            find_run(results, wrong)


def test_diff_names_the_settings_the_content_and_the_paired_effect(study):
    results, names = study
    for digit, name in enumerate((names[0], names[3])):
        file = results.run(name) / "provenance.json"
        content = {"task.train_file": {"sha256": str(digit)}, "task.evaluation_file": {"sha256": "2"}}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"content": content}))
    _, text = diff(results, names[0], names[3])
    keys = [line.split("  ")[0] for line in text.split("\noutcome")[0].splitlines()]
    assert keys == ["setting", "kernel", "content of task.train_file"], "equal settings are left out"
    assert "final_score of no_clip/addition minus symmetric/addition, paired over 3 seeds: " in text
