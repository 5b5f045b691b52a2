"""The report's Markdown, tables and figures as LaTeX, with booktabs and graphicx alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pandas as pd

from grpolab.report.style import Manifest
from grpolab.report.text import NONE, begun

ROWS, TALL_ROWS = 40, 10  # of a table on one page; of one whose cells are sentences
LETTERS = 105  # of a row: more would be shrunk until nobody can read them
ARXIV = re.compile(r"\(?(?<![\d.])(\d{4}\.\d{5})(?![\d.])\)?")
# A column of sentences -> its width in cm; other columns are as wide as their words.
WIDE = {"claim": 2.7, "says": 4.5, "of": 2.0, "effect [interval of the decision]": 4.5, "claimed by": 3.5}
WIDE |= {"contrast": 2.6, "size": 5.0, "levels": 8.0, "margin": 2.3, "verdict": 2.0, "value": 6.0}
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"}
SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': "''", "–": "--"}
MATHS = {"<": "<", ">": ">", "|": "|", "−": "-", "²": "^2"}
MATHS |= {"±": r"\pm", "×": r"\times", "≠": r"\neq", "≤": r"\leq", "≥": r"\geq", "∞": r"\infty", "·": r"\cdot"}
MATHS |= {"→": r"\rightarrow", "χ": r"\chi", "µ": r"\mu", "ε": r"\epsilon"}
SPECIAL |= {character: f"\\ensuremath{{{command}}}" for character, command in MATHS.items()}


def escape(text: str) -> str:
    """Return text for LaTeX; a character that pdflatex may not know is written as its number."""

    def one(character: str) -> str:
        if character.isascii() or character in SPECIAL:
            return SPECIAL.get(character, character if character.isprintable() else " ")
        return character if character.isalpha() and character < "\u0180" else f"[U+{ord(character):04X}]"

    return "".join(map(one, str(text).replace("->", "→")))


def latex(text: str) -> str:
    """Return a line of Markdown as LaTeX: `code`, **bold** and plain words."""
    words = list[str]()
    for part in re.split(r"(`[^`]+`|\*\*[^*]+\*\*)", str(text)):
        kind = "texttt" if part[:1] == "`" else "textbf" if part[:2] == "**" else ""
        words.append(f"\\{kind}{{{escape(part.strip('`*'))}}}" if kind and len(part) > 2 else escape(part))
    return "".join(words)


def markdown(text: str) -> str:
    """Return the report's Markdown as LaTeX: headings, lists, fenced lines and paragraphs."""
    lines = list[str]()
    for is_list, group in groupby(text.split("\n"), lambda line: line.startswith("- ")):
        if is_list:
            items = (f"\\item{{}} {latex(line[2:])}" for line in group)
            lines += ["\\begin{itemize}", *items, "\\end{itemize}"]
            continue
        is_code = False
        for line in group:
            if line.startswith("```"):
                is_code = not is_code
                lines.append(f"\\{'begin' if is_code else 'end'}{{verbatim}}")
            elif is_code:  # a shell goes on behind a backslash, so a long command is broken at blanks and commas
                is_broken = len(line) > 76 and not {"'", '"'} & {*line}
                lines.append(re.sub(r"(.{40,74}[ ,])(?=\S)", r"\1\\\n", line) if is_broken else line)
            else:
                is_heading = line.startswith("#")
                lines.append(f"\\subsubsection*{{{latex(line.lstrip('# '))}}}" if is_heading else latex(line))
    return "\n".join(lines)


def table(frame: pd.DataFrame, caption: str) -> str:
    """Write a table of texts, a large one in several; a column `claimed by` is LaTeX already.

    A column without any value is left out.
    """
    frame = frame.loc[:, (frame.astype(str) != NONE).any()] if len(frame) else frame
    texts = frame.astype(str).apply(lambda column: column if column.name == "claimed by" else column.map(latex))
    most, parts = TALL_ROWS if {*frame} & {"says", "of"} else ROWS, list[str]()
    for columns in _columns(frame):
        kinds = "".join(f"p{{{WIDE[name]}cm}}" if name in WIDE else "l" for name in columns)
        # With {}, because LaTeX would take a bracket at the beginning of a row for an option.
        head, rows = (
            " & ".join(map(latex, columns)),
            ["{} " + " & ".join(row) for row in texts[columns].itertuples(index=False)],
        )
        for first in range(0, len(rows), most):
            lines = [
                *("\\begin{table}[!htbp]", "\\centering\\small"),
                f"\\caption{{{'The same, continued.' if parts else latex(caption)}}}",
                "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%",
                *(f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", f"{head} \\\\", "\\midrule"),
                *(f"{row} \\\\" for row in rows[first : first + most]),
                *("\\bottomrule", "\\end{tabular}}", "\\end{table}"),
            ]
            parts.append("\n".join(lines))
    return "\n".join(parts)


def _columns(frame: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the columns of each part of a table: those that name a row, and of the others as many as can be read."""
    names = [str(name) for name in frame]
    keys = names[: names.index("n") + 1] if "n" in names else names[:1]
    letters = {name: max([len(name), *frame[name].astype(str).map(len)]) for name in names}
    letters |= {name: int(6 * width) for name, width in WIDE.items()}
    part, room = list[str](), LETTERS - sum(letters[name] for name in keys)
    for name in names[len(keys) :]:
        if part and sum(letters[each] for each in (*part, name)) > room:
            yield keys + part
            part = []
        part.append(name)
    if names:
        yield keys + part


def figure(manifest: Manifest, path: Path) -> str:
    """Write a figure with its caption; its PDF lies beside the picture."""
    caption = latex(f"{manifest.caption} {begun(manifest.statistic)}.")
    size = "width=\\textwidth,height=0.7\\textheight,keepaspectratio"
    return (
        f"\\begin{{figure}}[!htbp]\n\\centering\n\\includegraphics[{size}]{{{path.with_suffix('.pdf').as_posix()}}}\n"
        f"\\caption{{{caption}}}\n\\end{{figure}}"
    )


def cited(source: str) -> str:
    """Return where a claim is from, with its arXiv numbers as citations."""
    parts = ARXIV.split(source)  # words and numbers in turn
    return "".join(f"\\cite{{arxiv:{part}}}" if n % 2 else escape(part) for n, part in enumerate(parts))
