"""The training command of a bash script, its words expanded as bash would, read and never run.

The script is read as somebody starts it who set nothing: without arguments, in an environment without its variables, so
that `${LR:-1e-6}` is 1e-6. What only a run can tell (`"$@"`, `$(..)`, `$LR` where nothing sets it) stays in its word as
it is written and is listed as open; the rest is read all the same. A condition that only a run can tell
(`[ -f FILE ]`, a probe for hardware) is taken to hold, and the words of the other way are given beside.
"""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from grpolab.frameworks.shell_syntax import ASSIGNED, Node, ShellError, parse
from grpolab.frameworks.shell_words import END, MARKS, PART, UNSET, Words, open_part

MOST_COMMANDS = 20_000  # that are looked at, each pass of a loop counted
MOST_PASSES = 100  # of a loop
MOST_CALLS = 20  # functions, `eval` and `bash -c` inside each other

DECLARES = {"export", "declare", "typeset", "local", "readonly"}
# Commands whose failure nobody plans for, and which print nothing. Any other's outcome is open.
SUCCEED = DECLARES | {
    ":", "cd", "chmod", "conda", "cp", "mkdir", "module", "pushd", "rm", "set", "shopt", "sleep", "source", "true",
    "ulimit", "unset", ".",
}  # fmt: skip
SAYS = {"echo", "printf", "cat", "tee", "grep"}  # whose words are text
SHELLS = {"bash", "sh", "zsh", "dash"}
TYPE_ELSEWHERE = {"ssh", "pdsh", "tmux", "screen", "sbatch", "su"}  # which take a script as a word
_COUNTED = re.compile(r"([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))", re.DOTALL)
_JOINS = ("&&", "||", "!", "(", ")", "<", ">", "-o", "-a")


@dataclass(frozen=True)
class Command:
    """A command as bash would start it."""

    words: tuple[str, ...]  # whatever launches it first, then the program; an open part as it is written
    open: Mapping[int, tuple[str, ...]]  # number of a word -> what stayed open in it, as it is written
    otherwise: tuple[str, ...] = ()  # its words where undecided conditions fail; empty where they are the same
    notes: tuple[str, ...] = ()  # a sentence for each thing that was left: further commands, unreadable lines


def training_command(text: str, is_ours: Callable[[list[str]], bool]) -> Command | None:
    """The first command of a script that is ours, by its expanded words; None where there is none."""
    found, notes, undecided = _started(text, is_ours)
    other = _started(text, is_ours, holds=False)[0] if undecided else found
    if not found and not other:  # as on a cluster, whose jobs find variables set (`[ "$RANK" = 0 ] && ...`)
        found, notes, _ = _started(text, is_ours, unset_is_open=True)
        other = found
    if not found:
        return replace(other[0], notes=tuple(notes)) if other else None
    if len(found) > 1:
        notes = [f"the script starts {len(found)} trainings, the first is read", *notes]
    otherwise = other[0].words if other and other[0].words != found[0].words else ()
    return replace(found[0], otherwise=otherwise, notes=tuple(notes))


def _started(
    text: str, is_ours: Callable[[list[str]], bool], holds: bool = True, unset_is_open: bool = False
) -> tuple[list[Command], list[str], bool]:
    """Every different command that is ours; what was not read; whether a condition had to be taken for true or false"""
    shell = _Shell(is_ours, holds, unset_is_open)
    nodes, problem = parse(MARKS.sub("?", text).replace("\r\n", "\n"))
    try:
        shell.run(nodes)
    except _Leave:
        pass
    except (ShellError, RecursionError) as error:
        problem = str(error) if isinstance(error, ShellError) else "it calls itself too often"
    notes = [f"not all of the script is read: {problem}"] if problem else []
    return list(shell.found.values()), notes, shell.undecided


class _Leave(Exception):
    """`exit`, `return`, `break` or `continue`."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word


class _Shell:
    """What is known while a script is read. Each command says whether it succeeds, None where only a run can tell."""

    def __init__(self, is_ours: Callable[[list[str]], bool], holds: bool, unset_is_open: bool) -> None:
        self.is_ours, self.holds, self.undecided = is_ours, holds, False
        self.unset_is_open = unset_is_open
        self.words = Words(self.output)
        self.functions: dict[str, list[Node]] = {}
        self.local: dict[str, dict[str, str] | None] = {}  # of the running function -> its caller's value
        self.found: dict[tuple[str, ...], Command] = {}
        self.printed: list[str | None] = []  # by `echo` since `$(`; a None is what only a run can tell
        self.asked = False  # whether a condition is being looked at: what it prints is taken for nothing
        self.looked_at = self.calls = 0

    def decided(self, outcome: bool | None) -> bool:
        """A condition's outcome, or what an undecided one is taken for."""
        self.undecided |= outcome is None
        return self.holds if outcome is None else outcome

    def condition(self, nodes: list[Node]) -> bool:
        """Whether these succeed, or are taken to."""
        asked, self.asked = self.asked, True
        outcome = self.decided(self.run(nodes))
        self.asked = asked
        return outcome

    def run(self, nodes: list[Node]) -> bool | None:
        outcome: bool | None = True
        for node in nodes:
            self.looked_at += 1
            if self.looked_at > MOST_COMMANDS:
                raise ShellError(f"more than {MOST_COMMANDS} commands have been looked at")
            outcome = self.node(node.kind, list(node.words), node.parts)
        return outcome

    def node(self, kind: str, words: list[str], parts: Sequence[list[Node]]) -> bool | None:
        """A command by what `Node` has of it."""
        match kind:
            case "command":
                return self.simple(words)
            case "((":
                return self.count(words[0])
            case "[[":
                return self.test([word if word in _JOINS else self.words.text(word) for word in words], patterns=True)
            case "{":
                return self.run(parts[0])
            case "(":
                return self.apart(parts[0])
            case "!":
                outcome = self.run(parts[0])
                return None if outcome is None else not outcome
            case "&&" | "||":
                if self.condition(parts[0]) is (kind == "&&"):
                    return self.branch(parts[1])[1]
                return kind == "||"
            case "if":
                for condition, body in zip(parts[::2], parts[1::2], strict=False):
                    if self.condition(condition) and self.branch(body)[0]:
                        return True
                if len(parts) % 2:
                    self.branch(parts[-1])
            case "case":
                self.case(self.words.text(words[0]), parts[0])
            case "for":
                for value in [value for word in words[1:] for value in self.words.fields(word)][:MOST_PASSES]:
                    self.words.variables[words[0]] = {"0": value}
                    if not self.goes_on(parts[0]):
                        break
            case "for((":  # whose end is not looked at
                if self.decided(None):
                    self.goes_on(parts[0])
            case "while" | "until":
                for _ in range(MOST_PASSES):
                    outcome = self.run(parts[0])
                    holds = self.decided(None) if outcome is None else outcome is (kind == "while")
                    if not holds or not self.goes_on(parts[1]) or outcome is None:
                        break
            case "function":
                self.functions[words[0]] = parts[0]
        return True

    def branch(self, body: list[Node]) -> tuple[bool, bool | None]:
        """Commands behind a condition: whether they go on, and their outcome.

        Those that exit train nothing: that way is not taken, and nothing of it stays.
        """
        before = dict(self.words.variables)
        try:
            return True, self.run(body)
        except _Leave as leave:
            if leave.word != "exit":
                raise
            self.words.variables = before
            return False, None

    def goes_on(self, body: list[Node]) -> bool:
        """One pass of a loop; whether there is another."""
        try:
            return self.branch(body)[0]
        except _Leave as leave:
            if leave.word == "return":
                raise
            return leave.word == "continue"

    def apart(self, body: list[Node]) -> bool | None:
        """As a process of its own."""
        before, outcome = dict(self.words.variables), None
        with contextlib.suppress(_Leave):
            outcome = self.run(body)
        self.words.variables = before
        return outcome

    def case(self, word: str, branches: list[Node]) -> None:
        """The first branch with a pattern that fits and that does not exit; the first or the last of an open word."""
        known = self.known(word)
        self.undecided |= known is None
        for branch in branches if known is not None or self.holds else reversed(branches):
            texts = [self.words.text(pattern) for pattern in branch.words]
            fits = known is None or any(fnmatch.fnmatchcase(known, text) for text in texts)
            if fits and self.branch(branch.parts[0])[0]:
                return

    def simple(self, words: list[str]) -> bool | None:
        """Assignments, or a command with assignments of its own before it."""
        first = next((at for at, word in enumerate(words) if not ASSIGNED.match(word)), len(words))
        declares = first < len(words) and words[first] in DECLARES
        if first < len(words) and not declares:
            fields = [value for word in words[first:] for value in self.words.fields(word)]
            return self.command(fields[0], fields[1:]) if fields else True
        for word in words[first + 1 :] if declares else words:
            name = re.split(r"\W", word, maxsplit=1)[0]
            if declares and words[first] == "local" and name:
                self.local.setdefault(name, self.words.variables.get(name))
            if ASSIGNED.match(word):
                self.words.assign(word)
        return True

    def command(self, name: str, rest: list[str]) -> bool | None:
        """A command by its expanded words."""
        match name:
            case "exit" | "return" | "break" | "continue":
                raise _Leave(name)
            case "[" | "test":
                return self.test(rest[:-1] if name == "[" else rest)
            case "let":
                return self.count(" ".join(rest))
            case "eval":
                return self.script(" ".join(rest))
            case "shift" if "@" in self.words.variables:
                self.words.set_arguments([*self.words.variables["@"].values()][1:])
            case "set" if rest[:1] == ["--"]:
                self.words.set_arguments(rest[1:])
            case "unset":
                for variable in rest:
                    self.words.variables.pop(variable, None)
            case "read" | "mapfile" | "readarray":
                self.words.variables |= {word: {"0": open_part(f"${word}")} for word in rest if word.isidentifier()}
            case _ if name in self.functions:
                return self.call(self.functions[name], rest)
        if name not in SAYS:
            scripts = _scripts([name, *rest])
            for script in scripts:
                self.script(script)
            if not scripts:
                self.start([name, *rest])
        self.print(name, rest)
        return False if name == "false" else True if name in SUCCEED else None

    def start(self, fields: list[str]) -> None:
        """Keep a program that is ours."""
        words = tuple(PART.sub(r"\1", word) for word in fields)
        if self.is_ours(list(words)):
            parts = {
                at: tuple(part[1] for part in PART.finditer(word)) for at, word in enumerate(fields) if END in word
            }
            self.found.setdefault(words, Command(words, parts))

    def call(self, body: list[Node], arguments: list[str]) -> bool | None:
        """A function, whose arguments and `local` variables end with it."""
        callers, self.local = self.local, {"@": self.words.variables.get("@")}
        self.words.set_arguments(arguments)
        try:
            outcome = self.nested(body)
        except _Leave as leave:
            if leave.word == "exit":
                raise
            outcome = None
        for name, value in self.local.items():
            self.words.variables.pop(name, None)
            if value is not None:
                self.words.variables[name] = value
        self.local = callers
        return outcome

    def script(self, text: str) -> bool | None:
        """The text of `eval` or `bash -c`, in which what is open stays a part of its word."""

        def held(part: re.Match[str]) -> str:
            name = f"_open_{len(self.words.variables)}"
            self.words.variables[name] = {"0": part[0]}
            return f"${{{name}}}"

        nodes, problem = parse(PART.sub(held, text))
        if problem:
            raise ShellError(problem)
        return self.nested(nodes)

    def nested(self, nodes: list[Node]) -> bool | None:
        if self.calls >= MOST_CALLS:
            raise ShellError(f"more than {MOST_CALLS} functions call each other")
        self.calls += 1
        try:
            return self.run(nodes)
        finally:
            self.calls -= 1

    # Tests, three-valued: None where an operand is open.

    def known(self, text: str) -> str | None:
        """The value of an operand; None where it is open."""
        return None if self.unset_is_open and UNSET in text else self.words.known(text)

    def test(self, operands: list[str], patterns: bool = False) -> bool | None:
        """`[ .. ]`, or `[[ .. ]]`, whose right side may be a pattern."""
        for joint, both in (("||", False), ("-o", False), ("&&", True), ("-a", True)):
            if joint in operands:
                at = operands.index(joint)
                sides = (self.test(operands[:at], patterns), self.test(operands[at + 1 :], patterns))
                return not both if (not both) in sides else None if None in sides else both
        if operands[:1] == ["!"]:
            outcome = self.test(operands[1:], patterns)
            return None if outcome is None else not outcome
        match [self.known(operand) for operand in operands]:
            case [] | [""]:
                return False
            case ["-z" | "-n" as sign, str(text)]:
                return (text == "") is (sign == "-z")
            case ["-v", str(name)]:
                return name in self.words.variables
            case [str(text)] if text not in _JOINS:
                return True
            case [str(left), "=" | "==" | "!=" as sign, str(right)]:
                same = left == right or (patterns and fnmatch.fnmatchcase(left, right))
                return same is (sign != "!=")
            case [str(left), "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as sign, str(right)]:
                numbers = self.words.number(left or "0"), self.words.number(right or "0")
                return bool(getattr(operator, sign[1:])(*numbers)) if None not in numbers else None
        return None

    def count(self, expression: str) -> bool | None:
        """`(( .. ))`, which may set a variable."""
        change = _COUNTED.fullmatch(expression.strip())
        if change is None:
            value = self.words.number(expression)
        else:
            name, step, sign, right = change.groups()
            value = self.words.number(f"{name}{step[0]}1" if step else f"{name}{sign}({right})" if sign else right)
            self.words.variables[name] = {"0": open_part(f"${name}") if value is None else str(value)}
        return None if value is None else value != 0

    def output(self, text: str) -> str | None:
        """What `$(..)` prints: that of `echo`, and of `expr` with numbers; None where anything else prints too."""
        nodes, problem = parse(text)
        if problem:
            return None
        (printed, asked), (self.printed, self.asked) = (self.printed, self.asked), ([], False)
        self.nested([Node("(", parts=(nodes,))])
        lines, self.printed, self.asked = self.printed, printed, asked
        known = [line for line in lines if line is not None]
        return "\n".join(known).rstrip("\n") if len(known) == len(lines) else None

    def print(self, name: str, rest: list[str]) -> None:
        """Keep what a command prints."""
        if name == "echo" and not (rest and rest[0].startswith("-")):
            self.printed.append(" ".join(rest))
        elif name == "expr" and (value := self.words.number(" ".join(rest))) is not None:
            self.printed.append(str(value))
        elif name not in SUCCEED and not self.asked:
            self.printed.append(None)


def _scripts(words: list[str]) -> list[str]:
    """The words that are scripts themselves: behind `bash -c`, `sh -lc` and the like, or typed elsewhere (`ssh`)."""
    programs = [word.rpartition("/")[2] for word in words]
    behind = zip(programs, words[1:], words[2:], strict=False)
    scripts = [text for shell, option, text in behind if shell in SHELLS and re.fullmatch(r"-[a-z]*c", option)]
    if not scripts and programs[0] in TYPE_ELSEWHERE:
        scripts = [word.removeprefix("--wrap=") for word in words[1:] if re.search(r"\S\s+\S", word)]
    return scripts
