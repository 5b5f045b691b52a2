"""`grpolab completion`: tab completion, made of the parser's commands and options, the studies and the settings."""

from __future__ import annotations

import argparse
import re

from grpolab.cli.common import Add
from grpolab.paths import available

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


def add_commands(add: Add) -> None:
    """completion."""
    text = 'a script for tab completion: in ~/.bashrc: eval "$(grpolab completion bash)"'
    add("completion", _completion, text, results=False).add_argument("shell", choices=list(SHELLS))


def _completion(arguments: argparse.Namespace) -> None:
    shell = arguments.shell
    cases = "\n".join(f"    '{name}') echo '{' '.join(words)}' ;;" for name, words in _words().items())
    print(
        f'# In ~/.{shell}rc: eval "$(grpolab completion {shell})"\n{WORDS.replace("@CASES@", cases)}{SHELLS[shell]}',
        end="",
    )


def _words() -> dict[str, list[str]]:
    """What may follow: a command's options, studies, keys and files; the words of a key under its `key=`."""
    from grpolab.cli import parsers
    from grpolab.sweep.compose import choices

    settings = choices()
    words_after = {f"{key}=": [f"{key}={word}" for word in words] for key, words in settings.items() if words}
    for group, commands in parsers()[1].items():
        words_after[f"{group} " if group else ""] = list(commands.choices)
        for name, command in commands.choices.items():
            usage = command.format_usage()
            words = re.findall(r"--[a-z-]+", usage)
            words += available() if "STUDY" in usage else []
            words += [f"{key}=" for key in settings] if "key=value" in usage else []
            words_after.setdefault(f"{group} {name}".strip(), words)
    return words_after
