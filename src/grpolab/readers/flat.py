"""Read a framework's config by its table of keys, `keys/<framework>.yaml`, which says what each key is here.

Sections of a table, whose first comment is the version that was read:

- `loss`: key -> option of the loss (`frameworks/options.py`, which has the default)
- `run`: key -> ours and the default; ours is a setting, a list of settings, or a word of the batch (BATCH)
- `choices`: key -> its default, and what each value sets of ours (`=key`: what that key says), or why it cannot;
  `needs`: other keys, the values that they must have for that, and what is said if they have not
- `fixed`: ours that the framework has no key for
- `not_carried`: key, or pattern -> the values that do nothing, and why the others are not carried
- `told`: the same for keys that are carried, but mean something else there
- `passed_over`: keys, beginnings of keys and patterns that change no result
- `switches`: beginning of keys -> the key without which they do nothing, and its default
- `renamed`: an older key, or beginning, -> today's

Where several keys set one thing of ours, the later row of the table that is not at its default counts.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from grpolab.bounded import parse_value
from grpolab.errors import near_matches
from grpolab.frameworks.options import OPTIONS
from grpolab.identity import dotted
from grpolab.readers import selection
from grpolab.readers.given import (
    ConfigFile,
    Given,
    Options,
    describe_other,
    parse_document,
    refuse_wrong_counts,
    refuse_wrong_types,
    shorten,
)
from grpolab.readers.pairs import (
    OVERRIDE,
    Open,
    find_program_end,
    follow_references,
    read_flags,
    read_overrides,
    split_open,
)
from grpolab.readers.python import Source, parse_python
from grpolab.readers.shell import find_training_command
from grpolab.settings.objective import Objective

TABLES = Path(__file__).parent / "keys"
# Words of the batch: how a framework counts what is sampled and what a step learns from.
SIZES = ("prompts_per_step", "completions_per_step", "group_of_completions", "rollout_part")
PARTS = ("num_minibatches", "minibatch_prompts", "minibatch_completions", "minibatch_part")
BATCH = {*SIZES, *PARTS, "total_completions", "warmup_share", "min_lr", "asked"}
# `.._part`: a factor of what one process samples or learns from; total_completions: of the whole run; asked: what only
# choices look at. `overlong_..`: the penalty for long answers in tokens, their number, its weight and where it ends.
SCHEDULES = ("constant", "linear", "cosine")
CONFIG_OPTIONS = {"config", "config_name", "config_path", "config_dir", "config_file"}


class TableReader:
    """A framework's reader: its table of keys, and the functions that `exchange.py` calls."""

    def __init__(self, name: str, text: str) -> None:
        """Take a table's YAML, whose first comment says the version, commit and files that were read."""
        table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        section = table.get
        self.name = name
        self.title: str = table["title"]
        self.source = text.partition("\n")[0].lstrip("# ")
        self.whole: str = table["resolved"]  # what of its own says all values of a run
        self.programs: list[str] = section("programs") or []
        self.packages: list[str] = section("packages") or []
        self.classes: dict[str, str] = section("classes") or {}  # config class -> where its fields are
        self.signs: set[str] = set(table["signs"])  # keys that no other framework has
        self.loss: dict[str, str] = section("loss") or {}
        self.run: dict[str, tuple[str | list[str], Any]] = section("run") or {}
        self.choices: dict[str, dict[str, Any]] = section("choices") or {}
        self.not_carried: dict[str, tuple[list[Any], str]] = section("not_carried") or {}
        self.told: dict[str, tuple[list[Any], str]] = section("told") or {}
        self.fixed: Options = section("fixed") or {}
        self.switches: dict[str, tuple[str, Any]] = section("switches") or {}
        self.passed_over: list[str] = section("passed_over") or []
        self.renamed: dict[str, str] = section("renamed") or {}

    # The keys that a file sets, with defaults.

    @functools.cached_property
    def defaults(self) -> Options:
        """Keys that are carried, with the framework's defaults."""
        return {
            **{key: self._of_loss.get(option) for key, option in self.loss.items()},
            **{key: default for key, (_, default) in self.run.items()},
            **{key: choice["default"] for key, choice in self.choices.items()},
        }

    @functools.cached_property
    def _of_loss(self) -> Options:
        """The loss's options, dotted, with the framework's defaults."""
        return dict(dotted(dict(OPTIONS[self.name][0])))

    def read(self, file: ConfigFile, name: str) -> Given:
        """Return the framework's keys in a file. Raises RequestError if it has none that only this framework has."""
        notes = list[str]()
        if file.kind in ("yaml", "json", "toml"):
            document, notes = parse_document(file)
            pairs = dict(dotted(document))
            if isinstance(document.get("defaults"), list | str):
                stand = f"the defaults of {self.title} stand for what they set"
                named = shorten(pairs.pop("defaults", ""))
                notes.append(f"defaults={named}: the files that it names are not read, {stand}")
            pairs = follow_references(pairs)
        elif file.kind == "python":
            pairs = self._read_python(file)
        else:
            pairs, notes = self._read_command(file)
        written = {*pairs}
        pairs = {key: self._open_if_bare(key, value) for key, value in self._rename(pairs).items()}
        if not self.has_evidence(written | pairs.keys(), file.kind):
            what = describe_other({key.partition(".")[0] for key in pairs} | pairs.keys())
            raise file.refusal(f"holds no config of {self.title}: {what or 'it has no key that only those have'}")
        return Given(*split_open(pairs), notes)

    def has_evidence(self, keys: Collection[str], kind: str) -> bool:
        """Return True if a file with these keys is the framework's. Of a document one sign alone is no evidence."""
        signs, carried = self.signs.intersection(keys), self.defaults.keys() & keys
        if kind in ("shell", "words", "python"):
            return bool(signs or carried)
        return len(signs) > 1 or (bool(signs) and len(carried) > 3)

    def _open_if_bare(self, key: str, value: Any) -> Any:
        """Return the value, open if a flag is bare whose value is no bool: an empty variable stood behind it."""
        is_no_bool = not isinstance(self.defaults.get(key), bool | None) or self.run.get(key, [""])[0] == "model.path"
        return Open("nothing, in the script as it stands") if value is True and is_no_bool else value

    def _read_python(self, file: ConfigFile) -> Options:
        tree = parse_python(file.text)
        source = Source(tree) if tree else None
        calls = [(call, name) for name in self.classes for call in (source.calls[name] if source else ())]
        if source is None or not calls:
            lacks = f"calls none of {', '.join(self.classes)}" if self.classes else "is Python, which has none"
            raise file.refusal(f"holds no config of {self.title}: it {lacks}")
        pairs = Options()
        for call, name in calls:
            given, _ = source.read_config(call)
            pairs |= {f"{self.classes[name]}{key}": value for key, value in given.items()}
        return pairs

    def _read_command(self, file: ConfigFile) -> tuple[Options, list[str]]:
        """Return the flags and overrides of the first command that is a training of the framework."""
        command = find_training_command(file.text, self.is_training)
        if command is None and file.kind == "words":  # flags or overrides without a program
            command = file.split(), []
        if command is None:
            raise file.refusal(f"starts no training of {self.title}")
        words, notes = command
        own = [number for number, word in enumerate(words, start=1) if word.endswith(tuple(self.programs))]
        behind = words[own[-1] if own else find_program_end(words) :]  # a launcher may stand before the program
        overrides = [word for word in behind if (match := OVERRIDE.fullmatch(word)) and match[3] is not None]
        flags = read_flags(word for word in behind if word not in overrides)
        pairs, taken_away = read_overrides(overrides)
        notes += taken_away
        for name in CONFIG_OPTIONS & flags.keys():
            file_there = flags.pop(name)
            if not (self._rename(flags | pairs).keys() & self.defaults.keys()):
                raise file.refusal(f"takes its config from {file_there}: give that file")
            stand = f"the defaults of {self.title} stand for what it sets"
            notes.append(f"--{name.replace('_', '-')} {file_there}: that file is not read, {stand}")
        added = [word for word in behind if isinstance(word, Open) and "=" not in word and not word.startswith("--")]
        if added:
            notes.append(f"words that only a run can tell: {', '.join(map(shorten, dict.fromkeys(added)))}")
        return flags | pairs, notes

    def is_training(self, words: list[str]) -> bool:
        """Return True if a command's words start one of the framework's programs, or have keys that only it has."""
        names = {word.partition("=")[0].lstrip("-+").replace("-", "_") for word in words}
        return bool(self.signs & (names | self._rename(dict.fromkeys(names)).keys())) or any(
            word.endswith(program) for word in words for program in self.programs
        )

    def _rename(self, pairs: Mapping[str, Any]) -> Options:
        """Return pairs under today's keys; today's own spelling counts where both stand there."""
        renamed = Options()
        for key, value in pairs.items():
            if value is True and key.startswith("no_") and isinstance(self.defaults.get(key[3:]), bool):
                key, value = key[3:], False
            old = key if key in self.renamed else next((each for each in self._prefixes if key.startswith(each)), "")
            renamed.setdefault(self.renamed[old] + key.removeprefix(old) if old else key, value)
        return renamed | {key: value for key, value in pairs.items() if key in self.defaults}

    @functools.cached_property
    def _prefixes(self) -> list[str]:
        return sorted((key for key in self.renamed if key.endswith(".")), key=len, reverse=True)

    def kind_of(self, name: str, given: Given) -> str:
        """Return whether a key is carried, not carried, has no effect on what is learnt, or is unknown."""
        if self._is_off(name, given.options):
            return "no effect"
        if name in self.defaults:
            return "carried"
        if (key := next((key for key in self.not_carried if fnmatch.fnmatchcase(name, key)), None)) is not None:
            value = _written(given, name)
            return "no effect" if value is None or value in self.not_carried[key][0] else "not carried"
        is_passed = any(fnmatch.fnmatchcase(name, f"{each}*" if each[-1] == "." else each) for each in self.passed_over)
        return "no effect" if is_passed else "unknown"

    def _is_off(self, name: str, written: Mapping[str, Any]) -> bool:
        """Return True if a switch turns the key's part of the framework off."""
        return any(
            name.startswith(part) and name != switch and not written.get(switch, default)
            for part, (switch, default) in self.switches.items()
        )

    def resolve_options(self, given: Given) -> Options:
        """Return all keys that are carried, with defaults. Raises RequestError for a value of a wrong type."""
        written = {
            key: _typed(value, self.defaults[key])
            for key, value in given.options.items()
            if key in self.defaults and not self._is_off(key, given.options) and (value is not None or key in self.loss)
        }
        options = self.defaults | written
        plain = {key: default for key, default in self.defaults.items() if key not in self.choices}
        refuse_wrong_types(self.title, options, plain)
        counts = ("num_generations", "num_iterations", *SIZES, *PARTS)
        wanted = [key for key, (ours, *_) in self.run.items() if ours in counts and options[key] is not None]
        refuse_wrong_counts(self.title, options, wanted)
        return options

    # Theirs as ours.

    def objective(self, options: Options) -> Objective:
        """Translate the options of the loss, but those that have no counterpart here (`_find_refused`)."""
        return self._translate(options | {key: self.defaults[key] for key in self._find_refused(options)[0]})

    def _translate(self, options: Options) -> Objective:
        """Translate the options of the loss; those without a default only if they are set. Raises ValueError."""
        nested = Options()
        for key, option in self.loss.items():
            if options[key] is not None or option in self._of_loss:
                *parents, last = option.split(".")
                functools.reduce(lambda level, part: level.setdefault(part, {}), parents, nested)[last] = options[key]
        return OPTIONS[self.name][1](nested)

    def _find_refused(self, options: Options) -> tuple[list[str], str]:
        """Return the key without which the loss can be translated, all if it is not one alone, and why it cannot be."""
        try:
            self._translate(options)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            reason = str(error)
            for key in [key for key in self.loss if options[key] != self.defaults[key]]:
                with suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._translate(options | {key: self.defaults[key]})
                    return [key], reason
            return [*self.loss], reason
        return [], ""

    def convert_run(self, options: Options) -> Options:
        """Return the settings besides the loss, by our keys; a group of one has no baseline."""
        values = self._set_values(options)
        values |= {"advantage_estimator": "none", "scale_rewards": "none"} if _is_alone(values) else {}
        return selection.settle(values)

    def _set_values(self, options: Options) -> Options:
        ours = self._by_our_words(options)
        values = self.fixed | {word: value for word, value in ours.items() if word not in BATCH and value is not None}
        values |= {"warm_start.max_steps": 0, **self._count_batch(ours)[0]}
        if (schedule := ours.get("lr_scheduler_type")) is not None:
            values["lr_scheduler_type"] = _schedule(schedule) or "constant"
        if (path := values.pop("model.path", None)) is not None:
            values |= {"model": "pretrained", "model.path": path}
        if ours.get("min_lr") and ours.get("learning_rate"):
            values["min_lr_ratio"] = min(ours["min_lr"] / ours["learning_rate"], 1.0)
        if ours.get("warmup_share") and ours.get("rollout_steps") and not ours.get("warmup_steps"):
            values["warmup_steps"] = int(ours["warmup_share"] * ours["rollout_steps"])
        for key in self.choices:
            meaning = self._meaning(key, options)
            for word, value in meaning.items() if isinstance(meaning, dict) else ():
                is_reference = isinstance(value, str) and value.startswith("=")
                values[word] = options[value[1:]] if is_reference else value
        if values.get("max_grad_norm") == 0:
            values["max_grad_norm"] = math.inf
        return values

    def _by_our_words(self, options: Options) -> Options:
        """Return the values of `run` by our words; a value of several words is one for each, or the same for all."""
        ours = Options()
        for key, (words, default) in self.run.items():
            value = options[key]
            several = [words] if isinstance(words, str) else words
            parts = value if isinstance(value, list) and len(value) == len(several) > 1 else [value] * len(several)
            for word, part in zip(several, parts, strict=True):
                if part is not None and (ours.get(word) is None or value != default):
                    is_factor = word.endswith("_part") and ours.get(word) is not None
                    ours[word] = part * ours[word] if is_factor else part
        if (total := ours.get("total_completions")) and (prompts := ours.get("prompts_per_step")):
            ours.setdefault("rollout_steps", max(total // (prompts * (ours.get("num_generations") or 1)), 1))
        return ours

    def _meaning(self, key: str, options: Options) -> Any:
        """Return what a choice's value sets of ours, or why it cannot; None for a value that is unknown."""
        meanings = {str(value).lower(): meaning for value, meaning in self.choices[key]["values"].items()}
        meaning = meanings.get(str(options[key]).lower())
        needs = self.choices[key].get("needs", {}).items() if meaning else ()
        return next((why for other, (allowed, why) in needs if options[other] not in allowed), meaning)

    def _count_batch(self, ours: Options) -> tuple[Options, list[str]]:
        """Return prompts and minibatches of a rollout step, and a sentence for what the file does not determine."""
        values, says = Options(), list[str]()
        group, prompts = ours.get("num_generations") or 1, ours.get("prompts_per_step")
        if (in_completions := ours.get("group_of_completions")) is not None:  # then the batch counts completions
            values["num_generations"] = group = in_completions
            ours, prompts = ours | {"completions_per_step": prompts}, None
        if prompts is None and (completions := ours.get("completions_per_step")) is not None:
            if completions % group:
                says.append(f"{completions} completions a step are no whole groups of {group}: the rest is left out")
            prompts = max(completions // group, 1)
        if prompts is None and (part := ours.get("rollout_part")) is not None:
            prompts, unknown = max(part // group, 1), "the file does not say how many there are"
            says.append(f"prompts_per_step={prompts} is what one process samples: {unknown}")
        if prompts is None:
            says.append(f"prompts_per_step: the file alone does not say it, and {self.title} has no default")
            return values, says
        values["prompts_per_step"] = prompts
        per_part = {"minibatch_prompts": 1, "minibatch_completions": group, "minibatch_part": group}
        sizes = [ours[word] / unit for word, unit in per_part.items() if ours.get(word) is not None]
        if ours.get("num_minibatches") is not None:
            values["num_minibatches"] = ours["num_minibatches"]
        elif sizes:
            size, of_step = sizes[0], f"the {prompts} of a rollout step"
            values["num_minibatches"] = max(int(prompts // size), 1)
            if size > prompts or prompts % size:
                why = f"more than {of_step}: one here" if size > prompts else f"which do not divide {of_step}"
                says.append(f"an optimiser step takes {size:g} prompts, {why}")
        elif "num_minibatches" not in self.fixed:
            says.append("num_minibatches: the file alone does not say how many optimiser steps a batch has; one here")
            values["num_minibatches"] = 1
        batch, asked = prompts * group, values.get("num_minibatches", 1)
        if batch % asked:
            values["num_minibatches"] = next(parts for parts in range(min(asked, batch), 0, -1) if batch % parts == 0)
            says.append(
                f"{asked} optimiser steps do not divide a batch of {batch} completions:"
                f" num_minibatches={values['num_minibatches']} here"
            )
        return values, says

    # What is said.

    def explain_unread(self, given: Given, options: Options) -> Iterator[str]:
        """Yield a sentence for each key that is open, unknown, or has a value that is not known here."""
        for key, text in given.open.items():
            if key in self.defaults:
                stands = f"the default {self.defaults[key]} stands for it"
                yield f"{key} ({shorten(text)}): the file alone does not say its value; {stands}"
        for key in [key for key in {**given.options, **given.open} if self.kind_of(key, given) == "unknown"]:
            near = near_matches(key, [*self.defaults, *self.not_carried])
            yield f"{key}={shorten(_written(given, key))}: {self.title} has no such key{near}; its effect is lost"
        refused, reason = self._find_refused(options)
        if refused:
            yield f"{', '.join(refused)}: {reason}; the preset stands for it"
        for key in self.choices:
            meaning = self._meaning(key, options)
            if isinstance(meaning, str) or (meaning is None and key in given.options):
                known = ", ".join(map(str, self.choices[key]["values"]))
                yield f"{key}={options[key]}: {meaning or f'here it is one of {known}; the preset stands for it'}"
        for key, (quiet, says) in {**self.not_carried, **self.told}.items():
            is_said = key in self.choices and isinstance(self._meaning(key, options), str)
            for name in [] if is_said else fnmatch.filter([*given.options, *given.open], key):
                if (value := _written(given, name)) is not None and value not in quiet:
                    yield f"{name}={shorten(value)}: {says}"

    def explain_defaults(self, given: Given, options: Options) -> Iterator[str]:
        """Yield sentences about the version whose defaults apply, and the defaults that were taken."""
        yield f"those of {self.source}"
        taken = [key for key in self.defaults if key not in given.options and options[key] not in (None, False, 0, "")]
        if taken:
            yield ", ".join(f"{key}={options[key]}" for key in sorted(taken))

    def explain_left_out(self, options: Options) -> Iterator[str]:
        """Yield a sentence for each thing of the run that the options do not determine, or that is another one here."""
        ours = self._by_our_words(options)
        yield from self._count_batch(ours)[1]
        values = self._set_values(options)
        yield from selection.explain(values)
        if _is_alone(values):
            yield "num_generations=1: a group of one has nothing to be compared with; the reward is the advantage here"
        schedule = ours.get("lr_scheduler_type")
        if schedule is not None and _schedule(schedule) is None:
            yield f"lr_scheduler_type={schedule}: here it is one of {', '.join(SCHEDULES)}; constant stands for it"
        if not ours.get("rollout_steps"):
            yield "the length of the run: set rollout_steps"
            if share := ours.get("warmup_share"):
                yield f"a warm-up over {share:g} of the run: give warmup_steps, this share of the run's steps"


def _written(given: Given, key: str) -> Any:
    """Return what a file has for a key: its value, or the text of one that is open; None without the key."""
    return given.open.get(key) or given.options.get(key)


def _is_alone(values: Options) -> bool:
    return values.get("num_generations") == 1 and values.get("advantage_estimator") not in ("none", "given")


def _typed(value: Any, default: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and type(default) is int:
        return int(value)
    if isinstance(value, str) and isinstance(default, bool | int | float):
        read = parse_value(value)
        return read if isinstance(read, bool | int | float) else value
    return value


def _schedule(name: Any) -> str | None:
    return next((schedule for schedule in SCHEDULES if schedule in str(name).lower()), None)


@functools.cache
def load_reader(name: str) -> TableReader:
    """Return a framework's reader, from its table."""
    return TableReader(name, (TABLES / f"{name}.yaml").read_text(encoding="utf-8"))


FLAT = tuple(sorted(table.stem for table in TABLES.glob("*.yaml")))
