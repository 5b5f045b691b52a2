"""Ways to break the overrides of `train`, `train -m` and `sweep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuzz_studies import FINE_STUDY, Wrong, mistyped, words
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from grpolab.settings.run import RunSettings
from grpolab.sweep.schema import options, resolve, root

Broken = tuple[list[str], list[str]]  # overrides, and the names of which a sentence must hold one
Breaker = Callable[[st.DrawFn], Broken]

FINE = {"fine": FINE_STUDY.encode()}
MEMBERS = {"task": "addition", "model": "tiny"}  # of the unions: those that conf/run.yaml chooses
INFINITE = ("epsilon_high", "max_grad_norm", "sampler_correction.high")  # `.inf` switches them off
GROUPS = ("task", "model", "loss_type")
GOOD = ("temperature=0.9", "weight_decay=0.1", "warmup_steps=2", "diagnostics.quantiles=false", "evaluation.items=50")


@dataclass(frozen=True)
class Leaf:
    """A key with one value, and what its JSON schema says of it."""

    key: str
    parts: tuple[dict[str, Any], ...]

    def takes(self, *types: str) -> bool:
        return any(part.get("type") in types for part in self.parts)

    def bound(self, *names: str) -> float | None:
        return next((part[name] for part in self.parts for name in names if name in part), None)


def _leaves(schema: dict[str, Any], key: str = "") -> Iterator[Leaf]:
    schema = resolve(RunSettings, schema)
    schema = options(RunSettings, schema).get(MEMBERS.get(key, ""), schema)
    for name, inner in schema.get("properties", {}).items():
        yield from _leaves(inner, f"{key}.{name}" if key else name)
    parts = tuple(resolve(RunSettings, part) for part in schema.get("anyOf", [schema]))
    if not any("properties" in part for part in parts):
        yield Leaf(key, parts)


LEAVES = list(_leaves(root(RunSettings)))
NUMBERS = [leaf for leaf in LEAVES if leaf.takes("integer", "number")]
WHOLE = [leaf for leaf in NUMBERS if not leaf.takes("number")]
LOWEST, HIGHEST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
RANGED = [leaf for leaf in NUMBERS if leaf in WHOLE or leaf.bound(*LOWEST, *HIGHEST) is not None]  # the rest take any
leaves, numbers = st.sampled_from(LEAVES), st.sampled_from(NUMBERS)


def unknown_key(draw: st.DrawFn) -> Broken:
    parts = draw(st.sampled_from([leaf.key for leaf in LEAVES] + list(GROUPS))).split(".")
    place = draw(st.integers(0, len(parts) - 1))
    parts[place] = draw(mistyped(parts[place]) | words())
    plus = draw(st.sampled_from(["", "+", "++"]))
    return [f"{plus}{'.'.join(parts)}={draw(st.sampled_from(['1', 'x', 'null', '[]']))}"], [parts[place]]


def wrong_type(draw: st.DrawFn) -> Broken:
    leaf = draw(leaves)
    values = ["[1,2]", "[[]]", "''"] if leaf.takes("number", "integer", "boolean") else ["7", "0.5", "true", "[a]"]
    if leaf.takes("number", "integer", "boolean"):
        values += [draw(words()), "'1'", "{a:1}"]
    if leaf.takes("number", "integer"):
        values += ["true", "false"]
    is_union = any("oneOf" in part for part in leaf.parts)  # of it the schema keeps no null
    if not (leaf.takes("null", "object") or is_union):
        values += ["null"]
    return [f"{leaf.key}={draw(st.sampled_from(values))}"], [leaf.key]


def out_of_range(draw: st.DrawFn) -> Broken:
    leaf = draw(st.sampled_from(RANGED))
    distance = draw(st.integers(1, 10**6))
    low, high = leaf.bound(*LOWEST), leaf.bound(*HIGHEST)
    values = [low - distance] if low is not None else []
    values += [high + distance] if high is not None else []
    values += [distance + 0.5] if leaf in WHOLE else []
    return [f"{leaf.key}={draw(st.sampled_from(values))}"], [leaf.key]


def not_finite(draw: st.DrawFn) -> Broken:
    key = draw(st.sampled_from([*[leaf.key for leaf in NUMBERS], "reward.weights.correct"]))
    values = ["nan", "-inf", "-.inf", "NaN"] + ["inf", ".inf", "1e999"] * (key not in INFINITE)
    return [f"{key}={draw(st.sampled_from(values))}"], [key]


def misfit(draw: st.DrawFn) -> Broken:
    prompts, group, parts = (draw(st.integers(2, 99)) for _ in range(3))
    batch = [f"prompts_per_step={prompts}", f"num_generations={group}"]
    found = [(["num_generations=1"], ["num_generations"]), (["model.heads=5"], ["model.heads"])]
    if prompts * group % parts:
        found.append(([*batch, f"num_minibatches={parts}"], ["num_minibatches"]))
        found.append(([*batch, f"micro_batch_size={parts}"], ["micro_batch_size"]))
    return draw(st.sampled_from(found))


def unreadable(draw: st.DrawFn) -> Broken:
    key, word = draw(leaves).key, draw(words())
    forms = (
        "{k}=[{w}|{k}=[{w}]]|{k}={{a:{w}|{k}=({w}|{k})|{k}='{w}|{k}=\"{w}|{k}|{k}={w}=1|{k}={w},|{k}=,{w}|.{k}=1|{k}.=1"
    )
    forms += (
        "|{k}[0]=1|{k}=choice(|{k}=\x00|{k}={w}\n{w}|{k}=ü|{k}=日本|é{k}=1|{k}={w}\x1b[31m|{k} {w}=1|={k}|{k}=\ud800"
    )
    return [draw(st.sampled_from(forms.split("|"))).format(k=key, w=word)], [key]


def interpolation(draw: st.DrawFn) -> Broken:
    key, word = draw(leaves).key, draw(words())
    forms = (
        f"${{@}} ${{oc.env:@}} ${{oc.env:}} ${{@:1}} ${{.@}} ${{..@}} ${{@.@}} x${{@}}y ${{{key}}} ${{@ ${{}}".split()
    )
    return [f"{key}={draw(st.sampled_from(forms)).replace('@', word)}"], [key]


def group_choice(draw: st.DrawFn) -> Broken:
    group, word = draw(st.sampled_from(GROUPS)), draw(words())
    choices = [word, f"[{word}]", f"{{a:{word}}}", "''", "3", "true", f"${{{word}}}", f"../{word}"]
    texts = [f"{group}={choice}" for choice in choices] + [f"{group}@{word}={word}", f"{group}/{word}=1", f"~{group}"]
    return [draw(st.sampled_from([*texts, "task=null", "model=null"]))], ["task", "model", group]


def not_one_run(draw: st.DrawFn) -> Broken:
    key = draw(leaves).key
    forms = ("{}=1,2", "{}=choice(1,2)", "{}=range(1,3)", "{}=interval(0,1)", "{}=glob(*)", "{}=shuffle(1,2)")
    return [draw(st.sampled_from(forms)).format(key)], [key]


def removal(draw: st.DrawFn) -> Broken:
    key = draw(leaves).key
    return [draw(st.sampled_from([f"~{key}", f"~{key}=1"]))], [key]


def of_hydra(draw: st.DrawFn) -> Broken:
    forms = [
        "hydra.{}=1",
        "hydra/{}=1",
        "+hydra.{}=1",
        "hydra={}",
        "hydra.run.dir={}",
        "defaults=[{}]",
        "defaults.0={}",
    ]
    return [draw(st.sampled_from(forms)).format(draw(words()))], ["hydra", "defaults"]


def huge(draw: st.DrawFn) -> Broken:
    key, depth = draw(numbers).key, draw(st.integers(1, 1500))
    digits = draw(st.sampled_from(["9" * 30, "1" + "0" * 5000]))
    values = ["[" * depth + "]" * depth, "{a:" * depth + "1" + "}" * depth, "z" * 50 * depth, "(" * depth]
    found = [(key, value) for value in values] + [("seed", digits), ("task.digits", digits)]
    key, value = draw(st.sampled_from(found))
    return [f"{key}={value}"], [key]


def sweep_values(draw: st.DrawFn) -> Broken:
    """Of `train -m`."""
    key, word = draw(numbers).key, draw(words())
    forms = (
        "{}=interval(0,1)|{}=glob(*)|{}=range(1,0)|{}=range(0,9,0)|{}=range(0,1e9)|{}=range(0,inf)|{}=1,1|{}=choice()"
    )
    forms += "|{}=shuffle(range(0,9))|{}=1,@|{}=choice(@,@z)|{}=[1],[2]|{}=1,-5|{}=1,"
    return [draw(st.sampled_from(forms.split("|"))).format(key).replace("@", word)], [key]


def free_text(draw: st.DrawFn) -> Broken:
    """May be valid by chance."""
    text = draw(st.text(max_size=20) | st.text("01e.-_ab[]{}(),:=$'\"\\~+@/ \n\té", max_size=20))
    if draw(st.booleans()):
        key = draw(numbers).key
        return [f"{key}={text}"], [key]
    text = text.lstrip("-\t ")  # no option
    return [text], [repr(text)[1:30], text.partition("=")[0]]


@st.composite
def _wrong(draw: st.DrawFn, breaker: Breaker) -> Wrong:
    """The broken overrides among good ones, in a command that takes them."""
    overrides, names = breaker(draw)
    used = {text.partition("=")[0].strip("+~") for text in overrides}
    good = [text for text in GOOD if text.partition("=")[0] not in used]
    place = draw(st.integers(0, 2))
    more = draw(st.lists(st.sampled_from(good), max_size=2, unique=True))
    mixed = [*more[:place], *overrides, *more[place:]]
    one, multirun = [("train", "--"), ("sweep", "fine", "--")], [("train", "-m", "--")]
    ways = multirun if breaker is sweep_values else one if breaker is not_one_run else one + multirun
    kind = f"overrides: {breaker.__name__.replace('_', ' ')}"
    return Wrong(kind, (*draw(st.sampled_from(ways)), *mixed), tuple(names), breaker is not free_text, FINE)


@st.composite
def _wrong_name(draw: st.DrawFn) -> Wrong:
    names = ["", ".", "..", "a/b", "/", "a b", "a\nb", "\x00", "-", "é/", "fine", "\ud800"]
    names.append("x" * draw(st.integers(101, 9999)))
    arguments = ("train", f"--name={draw(st.sampled_from(names))}")
    return Wrong("overrides: name of the study", arguments, ("name",), studies=FINE)


BREAKERS: list[Breaker] = [
    *(unknown_key, wrong_type, out_of_range, not_finite, misfit, unreadable, interpolation, group_choice),
    *(not_one_run, removal, of_hydra, huge, sweep_values, free_text),
]
WRONG_OVERRIDES: list[SearchStrategy[Wrong]] = [*map(_wrong, BREAKERS), _wrong_name()]
