"""The reader of shell scripts: the words that bash itself gives, or none; what stays open; bounds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpolab.readers.shell import Command, find_training_command

TRAIN = "python3 -m trainer"

# Each runs to its end in an empty environment, and starts one training. Those of EXACT are read to the last word.
EXACT = {
    "assignments": r"""
        a=1 b=2
        export c='x y'
        declare -r d="$a-$b"
        TRAIN a=$a d=${d} c="$c" $c
    """,
    "defaults": r"""
        lr=${LR:-1e-6}
        n=${N:-${M:-8}}
        e=""
        : ${k:=5}
        TRAIN $lr $n ${e:-full} ${e-set} $k
    """,
    "arithmetic": r"""
        n=3 m=4
        TRAIN $((1024 * 2)) $(((n + 1) * n)) $((7 / 2 * 2)) $(($m * 2 + ${n}))
    """,
    "arrays": r"""
        A=(a=1 "b c"  # a comment, isn't read
           d)
        A+=(e)
        B=()
        TRAIN "${A[@]}" "${B[@]}" x${A[*]}
    """,
    "quotes": r"""
        x='a  b'
        TRAIN "$x" $x '$x' \$x "it's" 'say "hi"' "a\"b" "\n"
    """,
    "values of Hydra": r"""
        TRAIN logger=['console','wandb'] 'logger=["console","wandb"]' "{a: 1}" ~a=b +c=1 ++d.e={f:1}
    """,
    "a comment ends it": "TRAIN a=1 \\\n    # b=2 \\\n\nc=3\n",
    "here-documents": "cat >/dev/null <<EOF\nTRAIN wrong='\nEOF\ncat >/dev/null <<-'E' ; x=1\nif (\n\tE\nTRAIN $x\n",
    "if": r"""
        d=gpu
        if [ "$d" = npu ]; then n=16; elif [[ $d == g* && -n "$d" ]]; then n=8; else n=1; fi
        TRAIN $n
    """,
    "chains": r"""
        [ -z "$UNSET" ] && a=1 || a=2
        [[ 3 -lt 2 ]] || b=3
        ! false && c=4
        TRAIN $a $b $c
    """,
    "case": "m=7b\ncase \"$m\" in\n (1b|3b) n=1 ;;\n 7*) n=7;;\n *) n=0\nesac\nTRAIN $n\n",
    "eval": "command=\"TRAIN a=1 b=2\"\neval $command\n",
    "a launcher in an array": r"""
        A=(x=1)
        if [ 1 -eq 1 ]; then A+=(
            y=2
        ); fi
        L=(env A=1 python3)
        "${L[@]}" -m trainer ${A[*]}
    """,
    "a probe for special hardware": r"""
        D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
        n=8
        case $D in npu) n=16 ;; gpu) ;; *) exit 1 ;; esac
        TRAIN n=$n
    """,
}  # fmt: skip
PARTLY = {
    "more arithmetic": "n=3 m=n+1\nTRAIN $((2 ** 3 ** 2)) $((m * 2)) $((n > 2 && n != 1)) $(($n << 2)) $((-7 / 2))",
    "parts of arrays": "A=(a b c)\nTRAIN x=${#A[@]} \"${A[@]:1:2}\" ${A[1]} ${A[-1]}",
    "by name": "declare -A M=([small]=1 [large]=2)\nk=large\nM[tiny]=0\nTRAIN a=${M[$k]} b=${M[tiny]}",
    "loops": "for i in 1 2; do [ $i = 2 ] && continue; s+=$i; done\nwhile (( j < 3 )); do ((j++)); done\nTRAIN $s j=$j",
    "functions": "f() { local x=1; TRAIN x=$x \"$@\" $#; }\nx=2\nset_n() { n=$1; return; }\nset_n 8\nf n=$n x=$x",
    "edited": "f=a/b.c.d\nTRAIN a=${f##*/} b=${f%/*} c=${f/b/x} d=${f:2:1} e=${#f} f=${f^^} g=$f",
    "printed": "f() { echo n=$1; }\nTRAIN $(echo a b) \"$(f 3)\" $(expr 2 + 3)",
    "arguments": "set -- a \"b c\"\nTRAIN \"$@\" $1 x=$#",
    "a value if another is set": "n=8\nTRAIN ${e:+no} ${n:+yes} $n",
    "pipes and subshells leave variables alone": """
        x=1
        x=2 | cat
        { x=3; } | cat
        (x=4)
        x=5 &
        echo 6 | while read x; do :; done
        TRAIN x=$x 2>&1 | tee /dev/null
    """,
    "an undecided condition": "n=4\nif ls /no 2>&1; then n=8; fi\nls /no 2>&1 && m=1\nTRAIN n=$n m=$m",
}  # fmt: skip


def read(script: str) -> Command:
    command = find_training_command(script.replace("TRAIN", TRAIN), lambda words: "trainer" in words)
    assert command is not None
    return command


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("name", [*EXACT, *PARTLY])
def test_a_word_is_that_of_bash_or_open(name: str, tmp_path: Path) -> None:
    script = {**EXACT, **PARTLY}[name]
    program, out = tmp_path / "python3", tmp_path / "out"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nif 'import' in ' '.join(sys.argv): sys.exit(1)\n"
        f"open({str(out)!r}, 'w').write('\\0'.join(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(
        ["bash", "-c", script.replace("TRAIN", TRAIN)], env=environment, cwd=tmp_path, check=False, timeout=20
    )
    given, command = out.read_text().split("\0"), read(script)
    start = command.words.index("-m")
    known = [word for at, word in enumerate(command.words) if at >= start and at not in command.open]
    assert set(known) <= set(given)
    if name in EXACT:
        assert (known, command.notes) == (given, [])


def test_what_only_a_run_can_tell_stays_as_it_is_written() -> None:
    command = read('n=$(nvidia-smi | wc -l)\nTRAIN lr=1e-6 n=$n "path=$HOME/$MODEL" m=$((N * 2)) "$@"')
    assert command.words[3:] == ("lr=1e-6", "n=$(nvidia-smi | wc -l)", "path=$HOME/$MODEL", "m=$((N * 2))", "$@")
    assert command.open == {4: "$(nvidia-smi | wc -l)", 5: "$HOME, $MODEL", 6: "$((N * 2))", 7: "$@"}


def test_branches_that_differ_leave_a_value_open_and_those_that_agree_do_not() -> None:
    command = read("n=8 m=1 A=(a)\nif nvidia-smi; then m=1 A+=(b); else n=4 m=1; fi\nTRAIN n=$n m=$m ${A[@]}")
    assert command.words[3:] == ("n=8 or 4", "m=1", "a", "b or nothing")
    assert [*command.open] == [3, 6]
    assert read("m=1\nif nvidia-smi; then m=2; elif x; then m=2; else m=2; fi\nTRAIN $m").words[3:] == ("2",)


def test_a_branch_that_exits_is_not_the_one_that_trains() -> None:
    guards = 'if [ -z "$1" ]; then echo usage; exit 1; fi\n[ -z "$2" ] && exit 1\nn=8'
    assert read(f"{guards}\nTRAIN n=$n\nexit 0\nTRAIN x").words[3:] == ("n=8",)


def test_what_is_not_read_is_said() -> None:
    assert read("TRAIN a=1\nTRAIN a=2").notes == ["the script starts 2 trainings, the first is read"]
    (note,) = read("n=1\nTRAIN n=$n\necho 'never closed\n").notes
    assert "not all of the script is read" in note
    printed = f'echo "{TRAIN}" trainer\ncat <<EOF\n{TRAIN}\nEOF'
    assert find_training_command(printed, lambda words: "trainer" in words) is None


def test_nothing_is_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    read(f"touch {touched}\nx=$(touch {touched})\n`touch {touched}`\neval touch {touched}\nTRAIN $x")
    assert not touched.exists()


@pytest.mark.parametrize(
    "script",
    [
        "x=aaaaaaaaaaaaaaaa\n" + "x=$x$x\n" * 60,
        "".join(f"x{n}=$x{n - 1}$x{n - 1}\n" for n in range(1, 60)),
        "echo " + "$(echo " * 500 + ")" * 500,
        "if true; then " * 5000,
        "x=" + "${a:-" * 500 + "}" * 500,
        "A=(1)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        'x="' + "$(" * 5000,
        "x=$((" + "9*" * 5000 + "9))\nx=$((9**9**9**9))\nx=$((" + "(" * 300 + "1" + ")" * 300 + "))",
        "x0=1\n" + "".join(f"x{n + 1}=x{n}+x{n}\n" for n in range(60)) + "y=$((x60))",
        "a=1 b=2\n" * 2000 + "if x; then a=2; fi\n" * 2000,
    ],
)  # fmt: skip
def test_hostile_scripts_end_soon(script: str) -> None:
    started = time.process_time()
    find_training_command(script, lambda words: False)
    assert time.process_time() - started < 5
