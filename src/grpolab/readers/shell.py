"""Read the commands of a bash script as words, as if the environment set no variable. Nothing is run.

A script is read from top to bottom: assignments, arrays, `${X:-default}`, `$((..))` of numbers, `$(echo ..)` and the
text in `bash -c TEXT` are followed. Other expansions (`$(..)`, `"$@"`, an unset variable) stay as written, and make
their word open, which means unknown. A condition that the text decides is decided, and a probe for special hardware
fails (conditions.py); behind any other branch, loop, function or command after `&&`, a variable that it may set is
open. What branches of special hardware give, and those that a caller's default decides, a second reading finds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from grpolab.readers.given import shorten
from grpolab.readers.pairs import Open
from grpolab.readers.shell_script import Script
from grpolab.readers.shell_words import MARKS, PRINTERS, START, ScriptError


def find_training_command(
    text: str, is_training: Callable[[list[str]], bool], is_told: Callable[[str], bool] = lambda key: True
) -> tuple[list[str], list[str]] | None:
    """Return the words of the first command that is a training, and sentences.

    They say what was not read, and each key for which `is_told` that has another value in a branch that was not taken.
    """
    text, notes = MARKS.sub("?", text).replace("\r\n", "\n"), list[str]()

    def read(script: Script) -> list[list[str]]:
        trainings = list[list[str]]()
        try:
            for fields in script.read(text):
                words = [Open(MARKS.sub("", field)) if START in field else field for field in fields]
                if words[0] not in PRINTERS and is_training(words) and words not in trainings:
                    trainings.append(words)
        except (ScriptError, RecursionError) as error:
            script.unread.append(str(error) if isinstance(error, ScriptError) else "it nests deeply")
        notes.extend(f"not all of the script is read: {reason}" for reason in script.unread)
        return trainings

    plain = Script()
    trainings = read(plain)
    others = [Script(is_special=True, spent=plain.spent)] if plain.probes else []
    others += [Script(is_caller_known=False, spent=plain.spent)] if plain.callers else []
    found = [read(script) for script in others]
    if not trainings:
        trainings = next(filter(None, reversed(found)), [])
        notes.append("as the script stands it starts no training; one that it may start is read")
    if not trainings:
        return None
    if len(trainings) > 1:
        notes.append(f"the script starts {len(trainings)} trainings, the first is read")
    ours, told = _pair(trainings[0]), dict[str, str]()
    for script, ways in zip(others, found, strict=True):
        given = "" if script.is_special else f" by the defaults of {', '.join(sorted(plain.callers))}"
        where = f"the branch for {', '.join(plain.probes)}" if script.is_special else "other branches"
        pairs = [_pair(way) for way in (ways if len(trainings) == 1 else ways[:1])]
        for key in filter(is_told, dict.fromkeys([*ours, *itertools.chain(*pairs)])):
            value = shorten(ours.get(key, "not set"))
            texts = dict.fromkeys(text for pair in pairs for text in pair.get(key, "not set").split(" or "))
            known = {*ours.get(key, "not set").split(" or "), "nothing"}
            if says := " or ".join(shorten(text) for text in texts if text not in known and text[:1] != "$"):
                told.setdefault(key, f"{key} is {value}{given}; in {where} it is {says}")
    return trainings[0], [*dict.fromkeys(notes), *told.values()]


def _pair(words: Sequence[str]) -> dict[str, str]:
    """Return the values of `key=value` and `--key value`."""
    pairs = dict[str, str]()
    for word, behind in itertools.pairwise([*words, ""]):
        is_of_several = isinstance(word, Open) and " " in word.partition("=")[0]
        for part in word.split() if is_of_several else [word]:
            key, sign, value = part.partition("=")
            name = key.lstrip("+-~").replace("-", "_")
            if sign or key.startswith("--"):
                before = f"{pairs[name]} or " if is_of_several and name in pairs else ""
                pairs[name] = before + (value if sign else behind)
    return pairs
