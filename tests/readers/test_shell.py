"""The reader of shell scripts: the words that bash itself gives, or none; what stays open; bounds."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpolab.readers.pairs import Open
from grpolab.readers.shell import find_training_command

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
    "if": r"""
        d=gpu n=1
        if [ "$d" = npu ]; then n=16; elif [[ $d == g* && -n "$d" ]]; then n=8; else n=1; fi
        TRAIN $n
    """,
    "chains": r"""
        b=3
        [ -z "$UNSET" ] && a=1 || a=2
        [[ 3 -lt 2 ]] || b=4
        ! false && c=4
        TRAIN $a $b $c
    """,
    "case": "m=7b n=0\ncase \"$m\" in\n (1b|3b) n=1 ;;\n 7*) n=7;;\n *) n=0\nesac\nTRAIN $n\n",
    "tests": r"""
        f=a/7b e= n=12
        [[ $f =~ ^a/[0-9]+b$ ]] && [[ ! $f == *"7c"* || -z $n ]] && a=1
        [[ ( $n -ge 12 && $f != b ) && $f != *"13"* ]] || b=1
        if ! [ -n "$e" -o "$n" -eq 13 ] && test -z "$e"; then c=1; fi
        if (( n > 11 )); then d=1; elif (( x )); then d=2; fi
        TRAIN a=$a b=${b:-0} c=$c d=$d
    """,
    "groups and subshells": r"""
        x=1 y=1
        if [ $x = 1 ] && { [ $y = 2 ] || [ $y = 1 ]; }; then L=(a b); fi
        [ $y = 2 ] && { x=2; y=3; }
        (x=4); x=5 | cat; { x=6; } | cat
        if ! { [ $x = 1 ]; }; then z=1; else z=2; fi
        TRAIN $x $y $z "${L[@]}"
    """,
    "a case in a line": "a=0.28; case $a in 0.2[0-9]) b=1;; *) b=2;; esac; case x in (y|x) c=1; esac; TRAIN $b $c",
    "a command in a text": r"""
        c='TRAIN a=1 "b c"' D=True
        [ ${D,,} = true ] && c+=' d=1'
        eval "$c"
    """,
    "a command for another shell": "c='TRAIN a=1'\nbash -c \"$c\"",
    "printed by decided commands": r"""
        d=$([ a = b ] && echo x || echo y)
        e=`if [ "$d" = y ]; then echo "$d z"; fi`
        TRAIN $d "$e" $(echo -n 1) ${d:+8} ${no:+9}
    """,
    "texts that commands run": r"""
        n=8 m=4
        export k=2
        if (( n <= 1 )) || (( n >= 9 )) || (( n != 8 )); then n=1; fi
        o=2 env p=1 bash -euo pipefail -c "
            set -e
            for i in 1; do (( \$i >= 1 )) && true; done
            cd /tmp && TRAIN n=$n \
                'm=$m' \"k=\${k:-3}\" o=\${o:-5} p=\$p
        "
    """,
    "a text in a text": "n=8 x='a b'\nexport m=4\nbash -c \"m=5; sh -c 'TRAIN n=$n \\\"x=$x\\\" m=\\${m}'\"",
    "a text that sets variables": "n=1\neval 'n=2; m=3'\nTRAIN $n $m",
    "a comment ends it": "TRAIN a=1 \\\n    # b=2 \\\n\nc=3\n",
    "here-documents": "cat >/dev/null <<EOF\nTRAIN wrong='\nEOF\ncat >/dev/null <<-'E' ; x=1\nif (\n\tE\nTRAIN $x\n",
    "eval": "command=\"TRAIN a=1 b=2\"\neval $command\n",
    "a launcher in an array": r"""
        A=(x=1)
        A+=(
            y=2
        )
        L=(env A=1 python3)
        "${L[@]}" -m trainer ${A[*]}
    """,
}  # fmt: skip
PARTLY = {
    "a branch in a branch": "n=1\nif true; then if false; then n=2; else n=1; fi; n=3; fi\nTRAIN $n",
    "more arithmetic": "n=3 m=n+1\nTRAIN $((2 ** 3 ** 2)) $((m * 2)) $((n > 2 && n != 1)) $(($n << 2)) $((-7 / 2))",
    "arithmetic that sets": "n=1 m=1\n: $((n++)) $((m <<= 2))\nTRAIN n=$n m=$m",
    "parts of arrays": "A=(a b c)\nTRAIN x=${#A[@]} \"${A[@]:1:2}\" ${A[1]} ${A[-1]}",
    "a word in an array": "A=(a b)\nA=x\nA+=y\nTRAIN ${A[@]}",
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


def read(script: str) -> tuple[list[str], list[str]]:
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
    given, (words, notes) = out.read_text().split("\0"), read(script)
    known = [word for word in words[words.index("-m") :] if not isinstance(word, Open)]
    assert set(known) <= set(given)
    if name in EXACT:
        assert (known, notes) == (given, [])


OPEN = [
    ("n=$(nvidia-smi | wc -l)\nTRAIN lr=1e-6 n=$n", ["lr=1e-6"], ["n=$(nvidia-smi | wc -l)"]),
    ('TRAIN "path=$HOME/$MODEL" m=$((N * 2)) "$@"', [], ["path=$HOME/$MODEL", "m=$((N * 2))", "$@"]),
    ("n=8 A=(a)\nif x; then A+=(b) m=1; else n=4; fi\nTRAIN n=$n ${A[@]}", ["a"], ["n=8 or 4", "nothing or b"]),
    ("C='TRAIN a=1'\nif x; then C=\"$C b=2\"; fi\n$C", ["a=1"], ["nothing or b=2"]),
    ("for n in 1 2; do\n m=$n k=3\n TRAIN n=$n k=$k\ndone", ["k=3"], ["n=1 or 2"]),
    ("n=8\nwhile [[ $# -gt 0 ]]; do case $1 in --n) n=$2; shift 2;; esac; done\nTRAIN n=$n", ["n=8"], []),
    ('if [ -z "$1" ]; then exit 1; fi\n[ -z "$2" ] && exit 1\nTRAIN n=${1:-8}\nexit\nTRAIN x', ["n=8"], []),
    ("f() { TRAIN n=${1:-8} $x; }\nf 4", [], ["n=${1:-8}", "$x"]),
    ("f() { n=4; A+=(c); }\nn=8 A=(a b)\nf\nTRAIN n=$n ${A[@]}", ["a", "b"], ["n=$n", " + what f adds"]),
    ("n=4\nf() { m=2; TRAIN n=$n m=$m; }\nn=8\nf", ["m=2"], ["n=$n"]),
]


@pytest.mark.parametrize(("script", "known", "left_open"), OPEN)
def test_what_the_script_alone_does_not_say_is_open(script: str, known: list[str], left_open: list[str]) -> None:
    words, notes = read(script)
    behind = words[words.index("trainer") + 1 :]
    assert [word for word in behind if not isinstance(word, Open)] == known
    assert [word for word in behind if isinstance(word, Open)] == left_open
    assert notes == []


OF_TEXTS = [
    ("COMMAND='cd /x && TRAIN a=1 \"b c\"' N=2 sbatch ray.sub", ["a=1", "b c"], []),
    ('n=1\nsbatch --nodes=2 --wrap="TRAIN n=$n"', ["n=1"], []),
    ("ray job submit --address=x -- bash -lc 'TRAIN a=1'", ["a=1"], []),
    ("ray job submit -- 'TRAIN a=1'", ["a=1"], []),
    ('n=2\nssh -p 22 host "cd /x; TRAIN n=$n m=\\$M"', ["n=2"], ["m=$M"]),
    ("export N=2\ndocker run -e M=3 image sh -c 'TRAIN n=${N:-1} m=${M:-1}'", ["m=3"], ["n=$N"]),
    (
        "a=$(date +%s)\nif x; then b=1; fi\nsrun bash -c \"TRAIN a=$a b='$b' c=1\"",
        ["c=1"],
        ["a=$(date +%s)", "b=nothing or 1"],
    ),
    ('bash -c "echo \'never closed"\nTRAIN a=1', ["a=1"], []),
]


@pytest.mark.parametrize(("script", "known", "left_open"), OF_TEXTS)
def test_a_text_that_a_command_runs_is_read(script: str, known: list[str], left_open: list[str]) -> None:
    words, notes = read(script)
    behind = words[words.index("trainer") + 1 :]
    assert [word for word in behind if not isinstance(word, Open)] == known
    assert [word for word in behind if isinstance(word, Open)] == left_open
    assert [*map("not all of the script is read".__lt__, notes)] == [True] * ("never" in script)


ASSIGN = "= += -= *= /= %= <<= >>= &= ^= |="
DO_NOT = "<= >= == != < > << >> + - * / % & ^ | && || ,"


@pytest.mark.parametrize("sign", f"{ASSIGN} {DO_NOT}".split())
def test_an_assignment_in_arithmetic_is_told_from_a_test(sign: str) -> None:
    words, _ = read(f"N=8 M=1\nif (( N {sign} M )); then echo; fi\nTRAIN n=$N")
    assert isinstance(words[-1], Open) is (sign in ASSIGN.split())


BRANCHES = r"""
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
SIZE=${SIZE:-7b}
n=8 m=2 k=1
case "${DEVICE}" in
    npu) n=16 ;;
    gpu | cpu) [[ $SIZE == 7b ]] || m=4 ;;
    *) exit 1 ;;
esac
if [ -e /dev/davinci0 ] || command -v rocm-smi > /dev/null; then k=2; fi
if [ -z "$DATA" ]; then echo "set DATA"; exit 1; fi
for i in 1 2; do if [ $i = 1 ]; then o=1; fi; done
TRAIN n=$n m=$m k=$k o=$o --flag $n
"""


def test_the_plain_branch_is_read_and_the_others_are_told() -> None:
    words, notes = read(BRANCHES)
    assert words[3:] == ["n=8", "m=2", "k=1", "o=nothing or 1", "--flag", "8"]
    assert [type(word) is Open for word in words[3:]] == [False, False, False, True, False, False]
    assert notes == [
        "n is 8; in the branch for torch_npu, /dev/davinci0, rocm-smi it is 16",
        "k is 1; in the branch for torch_npu, /dev/davinci0, rocm-smi it is 2",
        "flag is 8; in the branch for torch_npu, /dev/davinci0, rocm-smi it is 16",
        "m is 2 by the defaults of DATA, DEVICE, SIZE; in other branches it is 4",
    ]
    told = find_training_command(BRANCHES.replace("TRAIN", TRAIN), lambda words: "trainer" in words, "m".__eq__)
    assert told is not None
    assert told[1] == notes[3:]


def test_a_training_that_only_the_caller_asks_for_is_read_with_a_sentence() -> None:
    words, notes = read('if [ "$MODE" = train ]; then\n TRAIN a=1\nfi')
    assert (words[-1], notes) == ("a=1", ["as the script stands it starts no training; one that it may start is read"])


def test_what_is_not_read_is_said() -> None:
    assert read("TRAIN a=1\nTRAIN a=2")[1] == ["the script starts 2 trainings, the first is read"]
    (note,) = read("n=1\nTRAIN n=$n\necho 'never closed\n")[1]
    assert "not all of the script is read" in note
    printed = f'echo "{TRAIN}" trainer\necho bash -c "{TRAIN}"\ncat <<EOF\n{TRAIN}\nEOF'
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
        "if x; then " * 30000 + "".join(f"a{n}=1;" for n in range(20000)) + "fi;" * 30000,
        "for x in 1; do a=1; " * 20000 + "done;" * 20000,
        "A='A=$A sbatch x'\neval eval '$A'\n$A",
        "a=1 b=2\n" * 2000 + "if x; then a=2; fi\n" * 2000,
    ],
)  # fmt: skip
def test_hostile_scripts_end_soon(script: str) -> None:
    started = time.process_time()
    find_training_command(script, lambda words: False)
    assert time.process_time() - started < 5
