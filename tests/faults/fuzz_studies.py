"""A wrong request, and ways to break a study file."""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

FINE_STUDY = """
question: What?
overrides: [num_iterations=2]
factors:
  clip: {narrow: [epsilon=0.1], wide: [epsilon=0.3]}
  task: {addition: [task=addition], sorting: [task=sorting]}
compare: clip
baseline: narrow
seeds: 2
primary_metric: eval/accuracy_expected
hypotheses:
  - id: H1
    says: A wide clip range ends higher.
    metric: final_score
    contrast: {of: wide, minus: narrow}
    where: {task: addition}
    direction: greater
    budget: rollouts
    source: nobody
figures: [F1, F2]
placebo: []
skip: [{clip: wide, task: sorting}]
"""
REQUIRED = ("question", "factors", "compare", "baseline", "seeds", "primary_metric")
REQUIRED_OF_CLAIM = ("id", "says", "metric", "contrast", "direction", "source", "budget")
DEEP_BOMB = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])

Study = dict[str, Any]


@dataclass(frozen=True)
class Wrong:
    """A request that must be refused."""

    kind: str  # how it was made wrong
    arguments: tuple[str, ...]
    names: tuple[str, ...]  # a sentence must hold one of these: the key or the value
    certain: bool = True  # else it may be valid by chance
    studies: Mapping[str, bytes] = field(default_factory=dict, hash=False)  # files of experiments/


def words(least: int = 1, most: int = 8) -> SearchStrategy[str]:
    """Lower-case words that start no literal of YAML or Hydra: no `nan`, `null`, `true`, `e`."""
    return st.text(string.ascii_lowercase, min_size=least, max_size=most).map(lambda word: f"zq{word}")


@st.composite
def mistyped(draw: st.DrawFn, word: str) -> str:
    """The word with a letter left out, doubled or put in; never the word itself, nor any that could be known."""
    place = draw(st.integers(1, len(word) - 1))
    letter = draw(st.sampled_from(["", word[place] * 2, f"{word[place]}x"]))
    return f"{word[:place]}{letter}{word[place + 1 :]}"


# Changes a study that is valid, and returns the names of which a sentence must hold one.
Breaker = Callable[[st.DrawFn, Study], list[str]]


def missing_key(draw: st.DrawFn, study: Study) -> list[str]:
    places = [(study, key) for key in REQUIRED] + [(study["hypotheses"][0], key) for key in REQUIRED_OF_CLAIM]
    place, key = draw(st.sampled_from(places))
    del place[key]
    return [key]


def unknown_key(draw: st.DrawFn, study: Study) -> list[str]:
    place = draw(st.sampled_from([study, study["hypotheses"][0], study["hypotheses"][0]["contrast"]]))
    key = draw(mistyped(draw(st.sampled_from(sorted(place)))) | words() | st.sampled_from(["name", "null", "1"]))
    place[key] = draw(st.sampled_from([1, "x", None, [], {}]))
    return [key]


def wrong_type(draw: st.DrawFn, study: Study) -> list[str]:
    key = draw(st.sampled_from(sorted(study)))
    study[key] = draw(st.sampled_from([{"a": {"b": 1}}, [[1]], None, True, [0.5, {}], [None], {}]))
    return [key]


def wrong_claim(draw: st.DrawFn, study: Study) -> list[str]:
    claim = study["hypotheses"][0]
    wrong: dict[str, list[Any]] = {
        "margin": [-1, "x", 0, float("nan"), float("inf"), [], -1e-9],
        "direction": ["more", "", None, 1, "Less", ["less"]],
        "scale": ["logit", None, 1],
        "beyond": [-1, "x", float("nan"), float("inf"), []],
        "by_construction": ["x", None, 2],
        "budget": ["steps", None, 1],
        "trend": ["wide", ["wide", "narrow"], ["wide", "narrow", "wide"], ["narrow", "wide", draw(words())]],
        "range_over": ["clip", draw(words()), ["task"]],
        "provided": ["clip", {"metric": "loss"}, {"metric": "loss", "of": draw(words()), "above": 0}],
        "contrast": [{}, "wide", {"of": draw(words())}, {"of": "wide", "minus": "wide"}, ["wide", "narrow"], None],
        "metric": [draw(words()), "", None, "clip/activ", ["loss"]],
        "where": [{"clip": "wide"}, {"task": draw(words())}, {draw(words()): "addition"}, [], "task", None],
        "id": ["", "a b", None, ["H1"]],
        "says": ["", None, {}],
    }
    key = draw(st.sampled_from(sorted(wrong)))
    claim[key] = draw(st.sampled_from(wrong[key]))
    return [key]


def unknown_name(draw: st.DrawFn, study: Study) -> list[str]:
    word, claim = draw(words() | mistyped("narrow")), study["hypotheses"][0]
    choices: list[tuple[Study, str, Any]] = [
        *((study, key, word) for key in ("compare", "baseline", "primary_metric")),
        (study, "figures", ["F1", word]),
        (study, "figures", ["F999"]),
        (study, "placebo", [["narrow", word]]),
        (study, "skip", [{"clip": word}]),
        (study, "skip", [{word: "narrow"}]),
        (claim["contrast"], "of", word),
        (claim["contrast"], "minus", word),
        (claim, "metric", f"clip/{word}"),
    ]
    place, key, value = draw(st.sampled_from(choices))
    place[key] = value
    return [word, "F999"]


def wrong_seeds(draw: st.DrawFn, study: Study) -> list[str]:
    number = draw(st.integers(0, 99))
    lists = [[number, number], [number, -1 - number], [], [0.5], ["a"], [None], [True], [2**63 + number], [[number]]]
    study["seeds"] = draw(st.sampled_from([*lists, 0, -1 - number, 10**12, 1.5, "two", True, {}, None]))
    return ["seeds"]


def wrong_factors(draw: st.DrawFn, study: Study) -> list[str]:
    word = draw(words())
    wrong = [
        *({}, [], word, None, {"clip": {}}, {"clip": None}, {"clip": []}, {"clip": word}, {"clip": {"narrow": None}}),
        *({"clip": {"narrow": level}} for level in ("epsilon=0.1", {"epsilon": 0.1}, [0.1])),
        *({"clip": {f"{word} a": []}}, {"clip": {f"{word}/a": []}}, {f"{word}/b": {"narrow": []}}),
        {"": {"narrow": []}},
        {word + str(i): {f"l{j}": [] for j in range(30)} for i in range(9)},
    ]
    study |= {"factors": draw(st.sampled_from(wrong)), "skip": [], "hypotheses": []}
    return ["factors", "'0.1'"]


def wrong_level(draw: st.DrawFn, study: Study) -> list[str]:
    word = draw(words())
    texts = [f"{word}=1", f"beta={word}", "beta=-1", "beta=[", "beta", "", f"task={word}", "seed=3", "~beta"]
    texts += [f"beta=${{{word}}}", "beta=1,2", "num_minibatches=7", "num_generations=1", "\x00", "beta=nan", f"={word}"]
    text = draw(st.sampled_from(texts))
    levels = (study["factors"]["clip"]["wide"], study["factors"]["task"]["sorting"])
    draw(st.sampled_from([study["overrides"], *levels])).append(text)
    return [repr(text), text.partition("=")[0].strip("~") or repr(text), word]


def conflict(draw: st.DrawFn, study: Study) -> list[str]:
    """Levels that undo each other, or leave nothing to study."""
    choice = draw(st.sampled_from(["same", "overridden", "no clip", "skip all", "twice", "itself"]))
    if choice == "same":
        study["factors"]["clip"]["wide"] = ["epsilon=0.1"]
    elif choice == "overridden":
        study["factors"]["task"]["addition"].append("epsilon=0.2")
    elif choice == "no clip":
        study["overrides"] = [draw(st.sampled_from(["num_iterations=1", "kernel=ratio"]))]
    elif choice == "skip all":
        study["skip"] = [{"clip": "narrow"}, {"clip": "wide"}]
    elif choice == "twice":
        study["hypotheses"].append(copy.deepcopy(study["hypotheses"][0]))
    else:
        study["figures"] = ["F1", "F1"]
    return ["equal settings", "clipping", "skip", "H1", "F1"]


# Files that are no study, between bars.
NOT_STUDIES = (
    "|null|3|text|[]|[1, 2]|- a\n- b|---\n---\n|\tquestion: x|{|question: [|a: b: c|a: *nobody|a: &a [*a]|&a {a: *a}"
    "|!!python/object:os.system x|!zq x|%TAG x|? [1]\n: 2|question: ${nobody}|1: a\n'1': b|x: !!binary abc|\x00"
    "|a: '\x1b[31m|a: 99999999999999999999-99-99|a: 2001-99-99"
)
ADDED = "\nseeds: 3|\n\tx: 1|\nfactors: {clip: {1: [], '1': []}}"


def not_yaml(draw: st.DrawFn) -> bytes:
    texts = [*NOT_STUDIES.split("|"), *(FINE_STUDY + more for more in [*ADDED.split("|"), DEEP_BOMB]), DEEP_BOMB]
    texts += ["question: " + "[" * 3000, FINE_STUDY[: draw(st.integers(1, FINE_STUDY.index("seeds")))]]
    broken = [*(text.encode() for text in texts), b"\xff\xfe\x00", "\ufeff[]".encode("utf-16")]
    broken += [draw(st.binary(max_size=60)), draw(st.text(max_size=60)).encode("utf-8", "surrogatepass")]
    return draw(st.sampled_from(broken))


@st.composite
def _wrong(draw: st.DrawFn, breaker: Breaker) -> Wrong:
    study = yaml.safe_load(FINE_STUDY)
    names = breaker(draw, study)
    text = yaml.safe_dump(study, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")
    kind = f"study: {breaker.__name__.replace('_', ' ')}"
    return Wrong(kind, ("sweep", "mine"), tuple(names), studies={"mine": text})


@st.composite
def _no_study(draw: st.DrawFn) -> Wrong:
    return Wrong("study: not a study's YAML", ("sweep", "mine"), ("mine",), studies={"mine": not_yaml(draw)})


COLLECTIONS = (
    "[mine]|[other]|[fine, other]|[{word}]|[]|fine|null|[fine, fine]|[../fine]|[[fine]]|['']|[fine]\nfigures: [F1]"
    "|[fine]\nfigures: [F999]|[fine]\nfactors: {{}}|[fine]\nseeds: 0|[fine]\nseeds: [1, 1]|[fine]\n{word}: 1"
)


@st.composite
def _wrong_collection(draw: st.DrawFn) -> Wrong:
    """Draw cycles, unknown names, keys that a collection lacks."""
    word = draw(words())
    content = draw(st.sampled_from(COLLECTIONS.split("|"))).format(word=word)
    mine, other = (f"question: q\nincludes: {names}".encode() for names in (content, "[mine]"))
    files = {"mine": mine, "other": other, "fine": FINE_STUDY.encode()}
    names = ("includes", "figures", "factors", "seeds", word, *files)
    return Wrong("study: collection", ("sweep", "mine"), names, studies=files)


@st.composite
def _unknown_study(draw: st.DrawFn) -> Wrong:
    odd = st.sampled_from(["", ".", "..", "../conf/run", "fine.yaml", "a\nb", "/", "\x00"])
    name = draw(mistyped("fine") | words() | odd)
    return Wrong("study: unknown", ("sweep", name), ("study",), studies={"fine": FINE_STUDY.encode()})


BREAKERS: list[Breaker] = [
    *(missing_key, unknown_key, wrong_type, wrong_claim, unknown_name),
    *(wrong_seeds, wrong_factors, wrong_level, conflict),
]
WRONG_STUDIES: list[SearchStrategy[Wrong]] = [
    *map(_wrong, BREAKERS),
    _no_study(),
    _wrong_collection(),
    _unknown_study(),
]
