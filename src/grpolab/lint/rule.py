"""A rule of the linter, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Finding:
    """What one rule says about one subject."""

    rule: str
    severity: Severity
    key: str  # the key to change
    sentence: str
    where: str = ""  # the study and its variants that it is about; empty: all there is

    @property
    def line(self) -> str:
        """The finding in one line."""
        place = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.rule}: {self.sentence}{place}; change {self.key}"


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """A pure function over a subject that yields a sentence, with its numbers, for each thing that it finds."""

    name: str
    severity: Severity
    key: str
    about: str
    check: Callable[[Subject], Iterator[str]]

    def findings(self, subject: Subject) -> list[Finding]:
        """What it finds."""
        return [Finding(self.name, self.severity, self.key, text) for text in self.check(subject)]


def rule(severity: Severity, key: str) -> Callable[[Callable[[Subject], Iterator[str]]], Rule[Subject]]:
    """Make a function a rule: its name is the rule's, its docstring the rule's page in docs/lint.md."""

    def make(check: Callable[[Subject], Iterator[str]]) -> Rule[Subject]:
        return Rule(check.__name__.replace("_", "-"), severity, key, " ".join((check.__doc__ or "").split()), check)

    return make
