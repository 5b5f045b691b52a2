"""What the commands share: where results lie, how numbers on the command line are read, how a study is drawn."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

import yaml

from grpolab.errors import RequestError
from grpolab.paths import Results, project_root, write_csv_atomic

OK, FAILURE, WRONG_REQUEST, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130
Command = Callable[[argparse.Namespace], int]
Add = Callable[..., argparse.ArgumentParser]


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, where argparse prints the usage before."""

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(WRONG_REQUEST, f"grpolab: {message} (`{self.prog} --help`)\n")


def results_of(arguments: argparse.Namespace) -> Results:
    """The results folder that a command works on."""
    return Results.open(arguments.results or machine_defaults()["results"])


def machine_defaults() -> dict[str, str]:
    """`machine` of conf/run.yaml, read without Hydra."""
    machine: dict[str, str] = yaml.safe_load((project_root() / "conf" / "run.yaml").read_text())["machine"]
    return machine


def count(text: str) -> int:
    """A whole number from 1 on, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number >= 1")
    return int(text)


def seeds(text: str) -> list[int]:
    """`3` is seeds 0, 1, 2; `3,4,5` is a list; for argparse."""
    from grpolab.sweep.schema import MOST_SEEDS

    parts = text.rstrip(",").split(",")
    whole = all(part.isdecimal() and int(part) < 2**63 for part in parts)
    if not whole or len(set(parts)) < len(parts) or text == "0" or ("," not in text and int(text) > MOST_SEEDS):
        raise argparse.ArgumentTypeError(f"{text} is not allowed: how many seeds, or a list of different ones: 3,4,5")
    return [int(part) for part in parts] if "," in text else list(range(int(text)))


def draw_all(results: Results, study: str) -> None:
    """Figures, tables and report of a study."""
    from grpolab.doctor.page import section
    from grpolab.report import page

    ensure_geometry(results)
    page.write(results, study, print, section)


def unmet(results: Results, study: str) -> list[str]:
    """What of a study's preconditions its runs do not meet; nothing of runs that must not be compared."""
    from grpolab.report.regimes import unmet_of

    try:
        return unmet_of(results, study)
    except RequestError:
        return []


def ensure_geometry(results: Results) -> None:
    """The tables behind the analytic figures: reports read files, and only the learning room can compute these."""
    if results.geometry.exists() and results.surface.exists():
        return
    from grpolab.run import replay

    write_csv_atomic(results.geometry, replay.table())
    write_csv_atomic(results.surface, replay.surface())


# ----------------------------------------------------------------------------------------------------------------------
# Tab completion: a script for the shell, made of the parser's commands and options, the studies and the settings.


# What may follow a command, or stand behind `key=`. A word that ends in = waits for its value.
WORDS = """\
_grpolab_words() {
  case "$1" in
@CASES@
  esac
}
"""
BASH = r"""
_grpolab() {
  local line="${COMP_LINE:0:$COMP_POINT}" command="${COMP_WORDS[1]}"
  local current="${line##* }"
  [[ $COMP_CWORD -gt 2 && -n "$(_grpolab_words "$command ${COMP_WORDS[2]}")" ]] && command="$command ${COMP_WORDS[2]}"
  [[ $COMP_CWORD -eq 2 && -n "$(_grpolab_words "$command ")" ]] && command="$command "
  [[ $COMP_CWORD -eq 1 ]] && command=""
  [[ $current == *=* ]] && command="${current%%=*}="
  COMPREPLY=($(compgen -W "$(_grpolab_words "$command")" -- "$current"))
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  # bash takes = for the end of a word, and replaces what stands behind it
  [[ $current == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${current%=*}="}")
  return 0
}
complete -o default -F _grpolab grpolab  # files where no word fits
"""
ZSH = r"""
_grpolab() {
  local command="${words[2]}" current="${words[CURRENT]}"
  local -a found
  (( CURRENT > 3 )) && [[ -n "$(_grpolab_words "$command ${words[3]}")" ]] && command="$command ${words[3]}"
  (( CURRENT == 3 )) && [[ -n "$(_grpolab_words "$command ")" ]] && command="$command "
  (( CURRENT == 2 )) && command=""
  [[ $current == *=* ]] && command="${current%%=*}="
  found=(${=$(_grpolab_words "$command")})
  compadd -S '' -- ${(M)found:#*=}
  compadd -- ${found:#*=}
  (( compstate[nmatches] )) || { compset -P '*='; _files }
}
autoload -U compinit && compinit
compdef _grpolab grpolab
"""
SHELLS = {"bash": BASH, "zsh": ZSH}


def add_commands(add: Add, commands: dict[str, Any]) -> None:
    """completion, of the commands that `commands` has by group when it is asked for."""

    def completion(arguments: argparse.Namespace) -> int:
        print(script(arguments.shell, commands), end="")
        return OK

    text = 'a script for tab completion: in ~/.bashrc: eval "$(grpolab completion bash)"'
    add("completion", completion, text, results=False).add_argument("shell", choices=list(SHELLS))


def script(shell: str, commands: dict[str, Any]) -> str:
    """The script; `commands`: the subparsers of each group, the commands that belong to none under an empty name."""
    cases = "\n".join(f"    '{name}') echo '{' '.join(words)}' ;;" for name, words in _words(commands).items())
    return f'# In ~/.{shell}rc: eval "$(grpolab completion {shell})"\n{WORDS.replace("@CASES@", cases)}{SHELLS[shell]}'


def _words(commands: dict[str, Any]) -> dict[str, list[str]]:
    """What may follow: a command's options, studies, keys and files; the words of a key under its `key=`."""
    from grpolab.sweep.compose import choices
    from grpolab.sweep.study import available

    settings = choices()
    found = {f"{key}=": [f"{key}={word}" for word in words] for key, words in settings.items() if words}
    for group, parsers in commands.items():
        found[f"{group} " if group else ""] = list(parsers.choices)
        for name, parser in parsers.choices.items():
            usage = parser.format_usage()
            words = re.findall(r"--[a-z-]+", usage)
            words += available() if "STUDY" in usage else []
            words += [f"{key}=" for key in settings] if "key=value" in usage else []
            found.setdefault(f"{group} {name}".strip(), words)
    return found
