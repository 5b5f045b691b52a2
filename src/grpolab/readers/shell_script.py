"""The variables and branches of a bash script, as far as its text decides them; `shell.py` says how it is read."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from grpolab.readers import conditions, shell_words
from grpolab.readers.conditions import Answer, Expand, both, either, negate
from grpolab.readers.python import calculate
from grpolab.readers.shell_words import ASSIGNMENT, BRANCHES, ENDS, KEYWORDS, START, ScriptError, find_end, mark, merge

T = TypeVar("T")
MOST_SPENT = 1 << 22  # steps: characters that are expanded, and blocks that are looked through
COUNTED = re.compile(
    r"\b[A-Za-z_]\w*+(?=\s*+(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=)))|(?<=\+\+|--)[A-Za-z_]\w*"
)  # set in `((..))`
PARAMETER = re.compile(r"(\w+|[@*#?$!-])(\[[@*]\])?(?:(:?[-=+?])(.*))?", re.DOTALL)  # within `${..}`
CASED = re.compile(r"\$\{([A-Za-z_]\w*)(,,|\^\^)\}")
IDLE = re.compile(r"\$#|\bgetopts\b|^\w+ in \"?\$[@*]\"?$")  # a loop over the script's arguments; there are none
PIPES = ("|", "|&")
DEEPEST = 2  # texts in texts that are read as scripts
LOOPS = {"while", "until", "for", "select"}
DECLARATIONS = {"export", "declare", "typeset", "local", "readonly"}
SETS = {"let", "read", "unset", "mapfile", "readarray", "printf", "getopts"}  # these set variables by name
OF_THE_MACHINE = {"HOME", "USER", "PWD", "HOSTNAME", "PATH", "RANDOM", "SECONDS", "UID", "BASH_SOURCE"}


@dataclass
class Block:
    """A compound command around the one in hand."""

    kind: str  # the keyword that begins it, or "function"
    around: tuple[Answer, str, Answer, bool]  # the pipeline that it is in
    live: Answer  # whether the branch in hand is run
    chosen: Answer = False  # whether one of the branches before has been
    before: dict[str, list[str]] = field(default_factory=dict)  # what the variables that are set in it were
    subject: str | None = None  # of `case`: the word that patterns are compared with; of a function: its name
    patterns: list[str] | None = None  # of `case`: those of the next branch, while they are read


class Script:
    """The variables of a script at the point up to which it has been read."""

    def __init__(self, is_special: bool = False, is_caller_known: bool = True, spent: int = 0) -> None:
        self.is_special, self.is_caller_known = is_special, is_caller_known  # how probes and callers' defaults decide
        self.probes = dict[str, None]()  # special hardware that was asked for
        self.functions: dict[str, set[str]] = {}  # name -> the variables that it sets
        self.named, self.replaced = "", set[str]()  # the last function's name; variables that one sets anew
        self.callers = set[str]()  # variables of the caller whose absence decided a branch
        self.variables: dict[str, list[str]] = {}  # the elements of each; a scalar has one
        self.sources: dict[str, set[str]] = {}  # variable -> those of the caller whose defaults it was set by
        self.seen = set[str]()  # variables of the caller that the words in hand were expanded with
        self.blocks: list[Block] = []
        self.exported, self.depth = set[str](), 0  # variables that other programs see; texts in texts
        self.unread = list[str]()  # why the rest of a text is not read
        self.is_set = False  # `set -- ..` gave $1 a value
        self.is_testing = False  # an unset variable is empty in a condition
        self.is_sourced = False  # except if another file may have set it
        self.status: Answer = True
        self.answer: Answer = None  # the status of the last simple command
        # The pipeline in hand: whether it is run, the operator before it, the status there, and whether `!` negates it.
        self.pipeline: tuple[Answer, str, Answer, bool] = (True, ";", True, False)
        self.spent = spent

    def read(self, text: str) -> Iterator[list[str]]:
        """Yield the words of each command that is no assignment. Raises ScriptError if the script cannot be read on."""
        joint = ";"
        for words, operator in shell_words.split_commands(text):
            self.spend(len(self.blocks))
            if self.is_in_patterns() and words[:1] != ["esac"]:
                self.read_patterns(words, operator)
                joint = ";"
                continue
            is_begun = False  # the pipeline, by `!`
            while words and words[0] in KEYWORDS:
                keyword, *words = words
                if keyword in shell_words.BEGINS or keyword == "!":
                    is_begun = is_begun or self.begin_pipeline(joint, keyword == "!")
                if keyword != "!":
                    if keyword != "function":
                        self.read_keyword("function" if keyword == "{" and joint == "()" else keyword, words, operator)
                    self.named = words[0] if keyword == "function" and words else self.named
                    joint, is_begun = ")" if keyword in ENDS else "()" if keyword == "function" else ";", False
                words = [] if keyword in ("for", "select", "case") else words[keyword == "function" :]
            if self.is_in_patterns():
                self.read_patterns([], operator)
                continue
            if (words or operator == "(") and not is_begun:
                self.begin_pipeline(joint)
            if words:
                yield from self.read_simple(words, joint in PIPES or operator in (*PIPES, "&"))
                if operator not in PIPES:
                    self.end_pipeline(self.answer)
                if words[0] == "exit" and not self.blocks and joint not in ("&&", "||"):
                    break
            self.named = words[0] if words and operator == "()" else self.named
            self.read_keyword("function" if operator == "(" and joint == "()" else operator, [], "")
            joint = operator if operator != "(" else ";"

    def read_simple(self, words: list[str], is_apart: bool) -> Iterator[list[str]]:
        """Read a command; what it sets is gone behind it if it is run apart, and open if it is only perhaps run."""
        is_run = self.pipeline[0]
        self.blocks.append(Block("(" if is_apart else "{", self.pipeline, None if is_apart and is_run else is_run))
        fields = self.read_command(words)
        self.call(fields[0] if fields else "")
        self.answer = self.decide(words, fields) if self.is_live() is not False else None
        given = [self.expand_text(word) for word in itertools.takewhile(ASSIGNMENT.match, words) if fields]
        texts = shell_words.find_texts(fields, given) if fields and self.depth < DEEPEST else []
        for text in texts:
            yield from self.read_text(text, fields[0], [*given, *fields])
        yield from filter(None, [] if texts else [fields])
        self.end_branch(self.blocks.pop())

    def read_text(self, text: str, name: str, words: list[str]) -> Iterator[list[str]]:
        """Read a text as a script: `eval` does it here, a shell with what is exported or given as NAME=VALUE."""
        is_far, known = name in shell_words.ELSEWHERE, self.exported & self.variables.keys()
        variables = {each: [mark(f"${each}")] if is_far else self.variables[each] for each in known}
        variables |= {match[1]: [word[match.end() :]] for word in words if (match := ASSIGNMENT.match(word))}
        script, pipeline = self if name == "eval" else self.fork(variables), self.pipeline
        script.depth += 1
        try:
            yield from script.read(text)
        except ScriptError as error:
            self.unread.append(str(error))
        script.depth -= 1
        self.spent, self.pipeline, self.answer = script.spent, pipeline, None

    def fork(self, variables: dict[str, list[str]]) -> Script:
        """Return a shell of its own, in the branch in hand."""
        child = copy.copy(self)
        child.variables, child.exported = dict(variables), set(self.exported)
        child.blocks = [*self.blocks, Block("(", self.pipeline, True)]
        return child

    def call(self, name: str) -> None:
        """Leave open what a function sets, or the end of what it appends to."""
        for variable in self.functions.get(name, set()):
            *rest, last = ([] if variable in self.replaced else self.variables.get(variable)) or [""]
            added = mark(f"${variable}" if variable in self.replaced else f" + what {name} adds")
            self.set(variable, [*rest, last, added] if rest else [last + added])

    def begin_pipeline(self, joint: str, is_negated: bool = False) -> bool:
        if joint in PIPES:
            self.pipeline = (*self.pipeline[:3], self.pipeline[3] or is_negated)
        else:
            is_run = {"&&": self.status, "||": negate(self.status)}.get(joint, True)
            self.pipeline = (is_run, joint, self.status, is_negated)
        return True

    def end_pipeline(self, answer: Answer) -> None:
        is_run, joint, before, is_negated = self.pipeline
        answer = negate(answer) if is_negated else answer
        if is_run is None:
            answer = both(None, answer) if joint == "&&" else either(None, answer)
        self.status = before if is_run is False else answer

    def is_in_patterns(self) -> bool:
        return bool(self.blocks and self.blocks[-1].patterns is not None)

    def read_patterns(self, words: list[str], operator: str) -> None:
        """Gather the patterns of a branch of `case`, and begin the branch at its `)`."""
        block = self.blocks[-1]
        block.patterns = [*(block.patterns or []), *words]
        if operator == ")":
            self.begin_branch(self.ask(lambda expand: conditions.matches(block.subject, block.patterns or [], expand)))
            block.patterns = None

    def begin_branch(self, answer: Answer) -> None:
        block = self.blocks[-1]
        block.live = both(both(block.around[0], negate(block.chosen)), answer)
        block.chosen = either(block.chosen, answer)

    def read_keyword(self, keyword: str, behind: Sequence[str], operator: str) -> None:
        """Begin a compound command, or end a branch of one: what was perhaps set in it is open from there on."""
        block = self.blocks[-1] if self.blocks else None
        if keyword in shell_words.BEGINS or keyword == "function":
            self.begin_block(keyword, behind)
        elif block and keyword in BRANCHES | ENDS | {"then"}:
            self.end_branch(block, is_apart=keyword in ENDS and operator in (*PIPES, "&"))
            if keyword == "then":
                self.begin_branch(self.status)
            elif keyword == "else":
                self.begin_branch(True)
            elif keyword in BRANCHES:
                block.live = both(block.around[0], negate(block.chosen))
                if keyword != "elif":
                    block.patterns, block.subject = [], block.subject if keyword == ";;" else None
            else:
                self.blocks.pop()
                if block.kind == "function":
                    self.functions[block.subject or ""] = set(block.before)
                self.pipeline = block.around
                self.end_pipeline(self.status if block.kind in "{(" else None)

    def begin_block(self, keyword: str, behind: Sequence[str]) -> None:
        is_idle = keyword in LOOPS and IDLE.search(" ".join(behind)) and not self.is_called()
        is_once = keyword in ("if", "case", "{", "(")
        block = Block(keyword, self.pipeline, self.pipeline[0] if is_once else False if is_idle else None)
        if keyword == "case" and len(behind) > 1:
            block.patterns = list(behind[2:])
            block.subject = self.ask(lambda expand: expand(behind[0]))
        block.subject = self.named if keyword == "function" else block.subject
        self.blocks.append(block)
        if keyword in ("for", "select") and behind and not is_idle:
            self.leave_open(COUNTED.findall(behind[0]) or behind[:1], " or ".join(behind[2:]))

    def end_branch(self, block: Block, is_apart: bool = False) -> None:
        """Undo what was set in a branch, leave it open or keep it: if it was run apart, perhaps, or for sure."""
        self.spend(len(block.before))
        outer = next((other for other in reversed(self.blocks) if other is not block), None)
        for name, elements in block.before.items():
            behind_it = self.variables[name]
            if is_apart or block.kind == "(":
                self.variables[name] = elements
                if not elements:
                    del self.variables[name]
            elif block.live is None:
                self.variables[name] = block.before[name] = merge(elements, behind_it)
            if outer is not None and self.variables.get(name, elements) is not elements:
                outer.before.setdefault(name, elements)
        if block.live:
            block.before = {}

    def is_live(self) -> Answer:
        """Return whether the command in hand is run."""
        lives = {block.live for block in self.blocks}
        return False if False in lives else None if None in lives else True

    def ask(self, question: Callable[[Expand], T | None]) -> T | None:
        """Return a question's answer; None in a loop, or if a default of the caller decides it and is not to."""

        def expand(word: str) -> str | None:
            value = self.expand_text(word)
            return None if START in value else value

        if self.is_live() is False or any(block.kind in LOOPS for block in self.blocks):
            return None
        self.seen, self.is_testing = set(), not self.is_sourced
        answer = question(expand)
        self.is_testing = False
        if answer is None or not self.seen:
            return answer
        self.callers |= self.seen
        return answer if self.is_caller_known else None

    def decide(self, words: list[str], fields: list[str]) -> Answer:
        """Return whether a simple command succeeds."""
        name = words[0]
        if not fields:
            return None if "$(" in " ".join(words) or "`" in " ".join(words) else True
        if probe := conditions.find_probe(fields):
            self.probes[probe] = None
            return self.is_special
        if name.startswith("(("):
            return self.ask(lambda _: conditions.decide_number(self.expand_numbers(name[2:-2])))
        if name in ("[", "[[", "test"):
            inner = words[1:] if name == "test" else words[1:-1]
            return self.ask(lambda expand: conditions.decide_test(inner, expand, name == "[["))
        self.is_sourced |= name in ("source", ".", "eval")
        return {"true": True, ":": True, "echo": True, "printf": True, "set": True, "false": False}.get(name)

    def is_called(self) -> bool:
        """Return True if $1 may have a value, as in a function; the script itself has no arguments."""
        return self.is_set or any(block.kind == "function" for block in self.blocks)

    def find(self, name: str) -> list[str] | None:
        """Return a variable's elements, None if unset; inside a function, only what the function sets is known."""
        self.spend(len(self.blocks))
        inside = [*itertools.dropwhile(lambda block: block.kind != "function", self.blocks)]
        is_open = inside and not any(name in block.before for block in inside)
        return [mark(f"${name}")] if is_open else self.variables.get(name)

    def read_command(self, words: list[str]) -> list[str]:
        """Read assignments; return the expanded words of any other command."""
        if not words or self.is_live() is False:
            return []
        first = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
        if first == len(words) or words[first] in DECLARATIONS:
            for match in [match for word in words if (match := ASSIGNMENT.match(word))]:
                self.assign(match.string[match.end() :], *match.groups())
            self.exported |= {word.partition("=")[0] for word in words[first:] if words[first] == "export"}
            return []
        if words[0] == "[[":
            return [word.strip("\"'") for word in words]
        if words[0].startswith("((") or words[0] in SETS:
            self.leave_open(COUNTED.findall(" ".join(words)) or words[1:], words[0])
        fields = [each for word in words[first:] for each in self.expand(word)]
        self.is_set |= fields[:1] == ["set"] and "--" in fields
        return fields

    def assign(self, right: str, name: str, index: str | None, plus: str) -> None:
        """Carry out `NAME=..`, `NAME+=..` or `NAME=(..)`. After `NAME[i]=..` the value of the whole array is open."""
        if index:
            self.leave_open([name], f"{name}{index}={right}")
            return
        self.seen = set()
        if is_list := right.startswith("("):
            parts = [part for words, _ in shell_words.split_commands(right[1:-1]) for part in words]
            elements = [each for part in parts for each in self.expand(part)]
        else:
            elements = [self.expand_text(right)]
        is_inside = any(block.kind == "function" for block in self.blocks)
        self.replaced |= {name} if is_inside and not plus else set()
        before = self.find(name) or []
        if is_list:
            self.set(name, [*before, *elements] if plus else elements)
        else:  # a word replaces element 0 of an array, or is appended to it
            self.set(name, ["".join([*(before[:1] if plus else []), *elements]), *before[1:]])
        self.sources[name] = self.seen | (self.sources.get(name, set()) if plus else set())

    def leave_open(self, names: Iterable[str], source: str) -> None:
        for name in names:
            self.set(name, [mark(source or f"${name}")])

    def set(self, name: str, elements: list[str]) -> None:
        for block in self.blocks[-1:]:
            block.before.setdefault(name, self.variables.get(name) or [])
        self.variables[name] = elements

    # Values.

    def spend(self, count: int) -> None:
        """Count steps. Raises ScriptError if they are too many."""
        self.spent += count
        if self.spent > MOST_SPENT:
            raise ScriptError("it is too long, or its variables become too large")

    def expand_text(self, word: str) -> str:
        """Return a word as one value."""
        return " ".join(self.expand(word))

    def expand(self, word: str, is_quoted: bool = False) -> list[str]:
        """Return the words that a word becomes after quote removal and expansion."""
        at, fields = 0, [""]
        while at < len(word):
            start, at = at, find_end(word, at, is_quoted)
            piece = word[start:at]
            parts = [piece]
            if piece[0] in "$`" and len(piece) > 1 and piece[:2] != "$'":
                parts = self.expand_parameter(piece)
                if not is_quoted:
                    parts = [each for part in parts for each in shell_words.FIELD.findall(part)]
                elif piece.endswith("[*]}"):
                    parts = [" ".join(parts)]
            elif piece[0] == "\\":
                parts = [piece if is_quoted and piece[1:] not in '$`"\\\n' else piece[1:].strip("\n")]
            elif piece[0] == '"' and not is_quoted:
                parts = self.expand(piece[1:-1], is_quoted=True)
            elif piece[0] in "<>" and len(piece) > 1:
                parts = [mark(piece)]
            elif piece[-1] == "'" and len(piece) > 1:
                parts = [piece.lstrip("$")[1:-1]]
            self.spend(len(piece) + sum(map(len, parts)))
            fields[-1] += "".join(parts[:1])
            fields += parts[1:]
        return [field for field in fields if field]

    def expand_parameter(self, source: str) -> list[str]:
        """Return the words to which a parameter, `$((..))` or `$(echo ..)` expands; any other expansion is open."""
        if source.startswith("$(("):
            text = self.expand_numbers(source[3:-2])
            is_rounded = "-" in text and ("/" in text or "%" in text)  # by bash to 0
            number = None if is_rounded else calculate(text.replace("/", "//"))
            self.leave_open(COUNTED.findall(source), source)
            return [mark(source) if number is None else str(int(number))]
        if source[0] == "`" or source.startswith("$("):
            printed = self.capture(source[1 + (source[0] == "$") : -1]) if "echo" in source else None
            return [mark(source) if printed is None else printed]
        if match := CASED.fullmatch(source):
            (value,) = self.expand_parameter(f"${match[1]}")
            return [value if START in value else value.lower() if match[2] == ",," else value.upper()]
        if (match := PARAMETER.fullmatch(source.strip("$").removeprefix("{").removesuffix("}"))) is None:
            return [mark(source)]
        name, index, sign, default = match.groups()
        elements, is_argument = self.find(name), name.isdecimal() and self.is_called()
        if name in "@*#?$!-0" or is_argument or (elements is None and name in OF_THE_MACHINE):
            return [mark(source)]
        self.seen |= self.sources.get(name, set())
        if elements is None and (self.is_testing or sign):
            self.seen.add(f"${name}" if name.isdecimal() else name)
        if index and "+" not in (sign or ""):
            return elements or []
        value = ("" if self.is_testing else mark(source)) if elements is None else "".join(elements[:1])
        is_empty = elements is None or (":" in (sign or "") and not value)
        if sign and "+" in sign:
            return [] if is_empty else self.expand(default)
        if sign and is_empty and "?" not in sign:
            value = self.expand_text(default)
            if "=" in sign:
                self.set(name, [value])
        return [value]

    def expand_numbers(self, source: str) -> str:
        """Return the text of an arithmetic expression with its variables' values in it."""
        named = re.sub(r"(?<![\w${])([A-Za-z_]\w*)", r"($\1)", source)
        return "".join(self.expand(named, is_quoted=True))

    def capture(self, text: str) -> str | None:
        """Return what `$(text)` prints if it is made of `echo` and decided conditions only, else None."""
        self.spend(len(text) + len(self.variables))
        child, printed = self.fork(self.variables), list[str]()
        try:
            for fields in child.read(text):
                if child.answer is None or fields[0] == "printf":
                    return None
                if fields[0] == "echo":
                    if not all(block.live for block in child.blocks[len(self.blocks) :]):
                        return None
                    printed.append(" ".join(fields[1 + (fields[1:2] == ["-n"]) :]))
        except ScriptError:
            return None
        finally:
            self.spent = child.spent
        return "\n".join(printed)
