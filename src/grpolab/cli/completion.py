"""`grpolab completion`: tab completion of commands, options, studies and settings in bash and zsh."""

from __future__ import annotations

import re
from typing import Any

# Both shells read the words that may follow a command from one list. zsh uses bash's completion function.
SCRIPT = """\
# In ~/.{shell}rc: eval "$(grpolab completion {shell})"
{setup}
_grpolab_words() {{
  case "$1" in
{cases}
  esac
}}
_grpolab() {{
  local command="${{COMP_WORDS[1]}}" current="${{COMP_WORDS[COMP_CWORD]}}"
  [[ $COMP_CWORD -eq 1 ]] && command=""
  [[ $COMP_CWORD -ge 2 && -n "$(_grpolab_words "$command group")" ]] && command="$command group"
  [[ $COMP_CWORD -gt 2 && $command == *group ]] && command="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
  COMPREPLY=()
  [[ $current == = || ${{COMP_WORDS[COMP_CWORD-1]}} == = ]] && return  # a value: files
  COMPREPLY=($(compgen -W "$(_grpolab_words "$command")" -- "$current"))
  [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}}
complete -o default -F _grpolab grpolab  # files where no word fits
"""
SETUP = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit"}


def script(shell: str, groups: dict[str, Any], studies: list[str], settings: list[str]) -> str:
    """Return the script. `groups`: the parser's subcommands by group, '' for those without one."""
    cases = dict[str, list[str]]()
    for group, commands in groups.items():
        cases[f"{group} group" if group else ""] = list(commands.choices)
        for name, command in commands.choices.items():
            usage = command.format_usage()
            words = re.findall(r"--[a-z-]+", usage)
            words += studies if "STUDY" in usage else []
            words += [f"{key}=" for key in settings] if "key=value" in usage else []
            cases.setdefault(f"{group} {name}".strip(), words)
    lines = "\n".join(f"    '{name}') echo '{' '.join(words)}' ;;" for name, words in cases.items())
    return SCRIPT.format(shell=shell, setup=SETUP[shell], cases=lines)
