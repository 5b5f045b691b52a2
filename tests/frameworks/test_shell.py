"""The reader of shell scripts: the words that bash itself gives, what stays open, what is chosen, and its bounds."""

import shutil
import subprocess
import sys
import time

import pytest

from grpolab.frameworks.shell import Command, training_command
from grpolab.frameworks.shell_words import arithmetic

TRAIN = "python3 -m trainer"


def read(script: str) -> Command:
    command = training_command(script, lambda words: "trainer" in words)
    assert command is not None
    return command


def words(script: str) -> list[str]:
    """Those behind `trainer`."""
    read_words = list(read(script).words)
    return read_words[read_words.index("trainer") + 1 :]


# Each runs to its end in an empty environment, and starts one training.
SCRIPTS = {
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
        TRAIN $lr $n ${e:-full} ${e-set} $k ${e:+no} ${n:+yes}
    """,
    "arithmetic": r"""
        n=3
        TRAIN $((1024 * 2)) $(((n + 1) * n)) $((-7 / 2)) $((-7 % 3))
    """,
    "more arithmetic": r"""
        n=3
        m=n+1
        TRAIN $((2 ** 3 ** 2)) $((n > 2 && n != 1)) $(($n << 2)) $((m * 2))
    """,
    "arrays": r"""
        A=(a=1 "b c"  # a comment, isn't read
           d)
        A+=(e)
        B=()
        TRAIN "${A[@]}" "${B[@]}" ${A[1]} ${#A[@]} "${A[@]:1:2}" ${A[-1]} x${A[*]}
    """,
    "by name": r"""
        declare -A M=([small]=1 [large]=2)
        k=large
        M[tiny]=0
        TRAIN ${M[$k]} ${M[tiny]}
    """,
    "quotes": r"""
        x='a  b'
        TRAIN "$x" $x '$x' \$x "it's" 'say "hi"' "a\"b" "\n" '' ""
    """,
    "values of Hydra": r"""
        TRAIN logger=['console','wandb'] 'logger=["console","wandb"]' "{a: 1}" ~a=b +c=1 ++d.e={f:1}
    """,
    "continued": r"""
        TRAIN a=1 \
            b=2 \
            "c\
d" e=\
f
    """,
    "a comment ends it": r"""
        TRAIN a=1 \
            # b=2 \

        c=3
    """,
    "here-documents": r"""
        cat > /dev/null <<EOF
        TRAIN wrong='
EOF
        cat > /dev/null <<-'END' ; x=1
if (
	END
        TRAIN $x
    """,
    "redirections": "TRAIN a >/dev/null 2>&1 b 3>&1",
    "a pipe": r"""
        x=1
        x=2 | cat
        TRAIN a=$x | cat
    """,
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
    "case": r"""
        m=7b
        case "$m" in
            (1b|3b) n=1 ;;
            7*) n=7;;
            *) n=0
        esac
        TRAIN $n
    """,
    "loops": r"""
        for i in 1 2 {3..5}; do
            [ $i = 2 ] && continue
            [ $i = 5 ] && break
            s+=$i
        done
        j=0
        while (( j < 3 )); do ((j++)); done
        TRAIN $s $j
    """,
    "functions": r"""
        launch() { local x=inner; TRAIN $x "$@" $#; }
        x=outer
        function set_n { n=$1; return; n=0; }
        set_n 8
        launch n=$n "a b" x=$x
    """,
    "a subshell": r"""
        n=1
        (n=2; TRAIN $n)
    """,
    "eval": r"""
        m=name
        command="TRAIN a=1 path='\"$m\"'"
        eval $command
    """,
    "bash -c": r"""bash -c 'TRAIN a=1 "b c"'""",
    "env": "env X=1 TRAIN a=1",
    "variables of its own": "X=1 Y='2 3' TRAIN a=1",
    "edited": r"""
        f=a/b.c.d
        TRAIN ${f##*/} ${f%/*} ${f%.*} ${f%%.*} ${f#*.} ${f/b/x} ${f//./_} ${f:2} ${f:2:1} ${#f} ${f^^}
    """,
    "braces": "TRAIN x={a,b} '{c,d}' {1..3} {one}",
    "printed": r"""
        f() { echo n=$1; }
        TRAIN $(echo a b) "$(f 3)" $(expr 2 + 3 \* 4) `echo c`
    """,
    "arguments": r"""
        set -- a "b c"
        TRAIN "$@" $1 $#
        shift
    """,
    "in the background": "x=1; TRAIN $x & wait",
    "a launcher in an array": r"""
        A=(x=1)
        if [ 1 -eq 1 ]; then A+=(
            y=2
        ); fi
        L=(env A=1 python3)
        "${L[@]}" -m trainer ${A[*]}
    """,
}  # fmt: skip
SCRIPTS = {name: script.replace("TRAIN", TRAIN) for name, script in SCRIPTS.items()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_gives(name: str, tmp_path) -> None:
    program = tmp_path / "python3"
    out = tmp_path / "out"
    program.write_text(f"#!{sys.executable}\nimport sys\nopen({str(out)!r}, 'w').write('\\0'.join(sys.argv[1:]))\n")
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(["bash", "-c", SCRIPTS[name]], env={"PATH": path}, cwd=tmp_path, check=False, timeout=20)
    command = read(SCRIPTS[name])
    assert list(command.words[command.words.index("-m") :]) == out.read_text().split("\0")
    assert (command.open, command.notes) == ({}, ())


def test_what_only_a_run_can_tell_stays_as_it_is_written() -> None:
    command = read(f'n=$(nvidia-smi | wc -l)\n{TRAIN} lr=1e-6 n=$n "path=$HOME/$MODEL" m=$((N * 2)) "$@"')
    behind = command.words[command.words.index("trainer") + 1 :]
    assert behind == ("lr=1e-6", "n=$(nvidia-smi | wc -l)", "path=$HOME/$MODEL", "m=$((N * 2))", "$@")
    opened = {command.words[at].partition("=")[0]: parts for at, parts in command.open.items()}
    assert opened["n"] == ("$(nvidia-smi | wc -l)",)
    assert opened["path"] == ("$HOME", "$MODEL")
    assert opened["$@"] == ("$@",)
    assert "lr" not in opened


def test_an_undecided_condition_is_taken_to_hold_and_the_other_way_is_given() -> None:
    probe = "DEVICE=${DEVICE:-$(python3 -c 'import npu' 2>/dev/null && echo npu || echo gpu)}"
    command = read(f"{probe}\ncase $DEVICE in gpu) n=8;; npu) n=16;; *) exit 1;; esac\n{TRAIN} n=$n same=1")
    assert command.words[-2:] == ("n=16", "same=1")
    assert command.otherwise[-2:] == ("n=8", "same=1")
    assert read(f"{TRAIN} n=1").otherwise == ()


def test_a_branch_that_exits_is_not_the_one_that_trains() -> None:
    guards = 'if [ -z "$1" ]; then echo usage; exit 1; fi\n[ -z "$2" ] && exit 1\nn=8'
    assert words(f"{guards}\n{TRAIN} n=$n path=$1\nexit 0\n{TRAIN} x") == ["n=8", "path=$1"]


def test_a_training_that_waits_for_a_clusters_variables_is_found() -> None:
    script = f'n=8\nif [ "$RANK" = 0 ]; then\n  ray start --head\n  {TRAIN} n=$n\nelse\n  ray start\nfi'
    assert words(script) == ["n=8"]
    other = f'if [ "$DEBUG" = 1 ]; then n=1; else n=8; fi\n{TRAIN} n=$n'
    assert words(other) == ["n=8"]  # found as it is, and nothing is guessed


@pytest.mark.parametrize(
    "typed",
    [
        f'ssh node1 "cd /work && {TRAIN} a=$n"',
        f'tmux send-keys -t 0 "{TRAIN} a=$n" C-m',
        f'sbatch --wrap="{TRAIN} a=$n"',
    ],
)
def test_a_training_that_is_typed_elsewhere_is_read(typed: str) -> None:
    assert words(f"n=2\n{typed}") == ["a=2"]


def test_the_first_of_several_trainings_is_read_and_the_others_are_told() -> None:
    command = read(f"for stage in 1 2 3; do {TRAIN} stage=$stage; done")
    assert command.words[-1] == "stage=1"
    assert command.notes == ("the script starts 3 trainings, the first is read",)
    assert read(f"while true; do {TRAIN} a=1; done").notes == ()  # the same one again


def test_text_that_is_printed_is_no_training() -> None:
    assert (
        training_command(f'echo "{TRAIN}" trainer\ncat <<EOF\n{TRAIN}\nEOF', lambda words: "trainer" in words) is None
    )


def test_a_script_is_read_up_to_what_cannot_be_read() -> None:
    command = read(f"n=1\n{TRAIN} n=$n\necho 'never closed\n")
    assert command.words[-1] == "n=1"
    assert command.notes == ("not all of the script is read: line 3: its ' is missing",)


def test_nothing_is_run(tmp_path) -> None:
    touched = tmp_path / "touched"
    read(f"touch {touched}\nx=$(touch {touched})\n`touch {touched}`\neval touch {touched}\n{TRAIN} $x")
    assert not touched.exists()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7/2", 3), ("-7/2", -3), ("2**10", 1024), ("-2**2", None), ("1+", None), ("a+1", None), ("1/0", None),
        ("2**64", None), ("9**9**9**9", None), ("1<<100", None), ("9" * 30, None), ("1.5*2", None),
        ("(" * 300 + "1" + ")" * 300, None), ("__import__('os')", None), ("3 >= 2 && 1 != 2", 1),
    ],
)  # fmt: skip
def test_arithmetic_of_whole_numbers_within_bounds(expression: str, value: int | None) -> None:
    assert arithmetic(expression) == value


@pytest.mark.parametrize(
    "script",
    [
        "x=aaaaaaaaaaaaaaaa\n" + "x=$x$x\n" * 60,
        "".join(f"x{n}=$x{n - 1}$x{n - 1}\n" for n in range(1, 60)),
        "f() { f; f; }\nf\n",
        "while true; do while true; do while true; do x=1; done; done; done\n",
        "echo " + "$(echo " * 500 + ")" * 500,
        "( " * 500,
        "if true; then " * 500,
        "x=" + "${a:-" * 500 + "}" * 500,
        "echo " + "{1..100000}" * 20 + "\n" + "echo {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}",
        "A=(1)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40,
        'x="' + "$(" * 5000,
        "x=" + "a" * 4000 + "\n" + "y=${x%%*a*a*a*a*a*a*a*b}\n",
    ],
)
def test_hostile_scripts_end_soon(script: str) -> None:
    started = time.process_time()
    training_command(script, lambda words: False)
    assert time.process_time() - started < 5
