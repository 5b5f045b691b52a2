#!/bin/sh
# Makes the virtual environment: torch for this machine, then the locked packages, then grpolab itself, editable.
#
#   requirements/setup.sh [FILE...]     FILE: further requirements, named from the project's root
#
#   TORCH_BACKEND   auto | cpu | cu126 | cu130 | pypi   the build of torch; auto (the default) is cpu on a Linux machine
#                                                       without an NVIDIA GPU, else pypi (Linux: CUDA 13, macOS: MPS)
#   ONLY_TORCH      set: torch alone, without the locked packages and grpolab
#   VENV            where; .venv unless given
#   UV              which uv; the one on PATH unless given; where there is none, or UV is empty, pip does the work
#
# torch goes first and alone: which build fits is a fact about the machine, so no lock can hold it, nor its hash. Once it
# is there, later steps leave it as it is; to change the build, delete the environment first. Everything else has to have
# the hash that stands in its file. A package that has lost a file is taken out before, and so installed anew.
set -eu
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
backend=${TORCH_BACKEND:-auto}
uv=${UV-$(command -v uv || true)}
torch=$(sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
log=$venv/setup.log

refuse() {
  echo "setup: $1" >&2
  exit "$2"
}

seconds() { date +%s; }

# step TITLE COMMAND...: one line on the screen, the command's own output in the log. pip's warnings about places that
# do not exist are left out of what a failure shows: they come by the hundred and hide the error.
step() {
  printf '%s ... ' "$1"
  shift
  started=$(seconds)
  "$@" >"$log" 2>&1 && code=0 || code=$?
  if [ "$code" -ne 0 ]; then
    echo "failed; the end of $log:"
    grep -v '^WARNING: Location .* is ignored' "$log" | tail -n 20 >&2
    exit "$code"
  fi
  echo "$(($(seconds) - started)) s"
}

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

# 3.11 first: a machine that keeps a torch wheel of its own may keep it for one Python only, and that is the oldest.
find_python() {
  for name in python3.11 python3.12 python3.13 python3; do
    if supported "$name"; then
      echo "$name"
      return
    fi
  done
}

# An environment that is there stays, whatever made it.
make_venv() {
  if [ -n "$uv" ]; then
    [ -x "$venv/bin/python" ] || "$uv" venv --allow-existing --python "${python:->=3.11,<3.14}" "$venv"
  else
    { [ -x "$venv/bin/python" ] || "$python" -P -m venv "$venv"; } &&
      { "$venv/bin/python" -P -m pip --version || "$venv/bin/python" -P -m ensurepip; }
  fi
}

# Compiled now, by uv too (pip does so by itself): containers often forbid Python to keep what it compiles, and every
# process would then start by compiling torch anew, 10 s instead of 4.
install() {
  if [ -n "$uv" ]; then
    "$uv" pip install --compile-bytecode --python "$venv/bin/python" "$@"
  else
    "$venv/bin/python" -P -m pip install --no-input "$@"
  fi
}

# PyTorch keeps one wheel index per build. On a machine that cannot reach it a wheel in a PIP_FIND_LINKS folder serves:
# pip looks there by itself; uv does not, and stops at an index that it cannot reach, so it is sent there first.
install_torch() {
  index=https://download.pytorch.org/whl/$backend
  case $backend${uv:+-uv} in
    pypi*) install "$torch" ;;
    cpu) install --no-deps --retries 1 --index-url "$index" "$torch" ;;
    cpu-uv) install_local_torch || install --no-deps --torch-backend cpu "$torch" ;;
    *-uv) install --torch-backend "$backend" "$torch" ;;
    *) install --index-url "$index" "$torch" ;;
  esac
}

remove() {
  if [ -n "$uv" ]; then
    "$uv" pip uninstall --python "$venv/bin/python" "$@"
  else
    "$venv/bin/python" -P -m pip uninstall --yes "$@"
  fi
}

damaged() { "$venv/bin/python" -I requirements/whole.py; }

# Do the packages that are installed fit one another, and are all of their files there?
check() {
  if [ -n "$uv" ]; then
    "$uv" pip check --python "$venv/bin/python"
  else
    "$venv/bin/python" -P -m pip check
  fi && damaged
}

install_local_torch() {
  for folder in ${PIP_FIND_LINKS:-}; do
    if install --no-deps --no-index --find-links "$folder" "$torch"; then return; fi
  done
  return 1
}

case $backend in
  auto) if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1; then backend=cpu; else backend=pypi; fi ;;
  cpu | cu126 | cu130 | pypi) ;;
  *) refuse "TORCH_BACKEND=$backend is not known: auto, cpu, cu126, cu130 or pypi" 2 ;;
esac
python=$(find_python)
if [ -n "$uv" ]; then
  command -v "$uv" >/dev/null || refuse "UV=$uv cannot be run: the path of uv, or nothing to use pip" 2
elif [ -z "$python" ]; then
  refuse "no Python 3.11, 3.12 or 3.13 on PATH: install one, or uv, which fetches it" 1
fi
if [ -d "$venv/bin" ]; then
  supported "$venv/bin/python" || refuse "$venv holds no Python 3.11 to 3.13 that runs: delete it and call again" 1
fi

begun=$(seconds)
mkdir -p "$venv"
step "Environment in $venv, with ${uv:-pip}" make_venv
if found=$(damaged); then :; else
  echo "damaged, installed anew: $(echo "$found" | paste -s -d ',' -)"
  # shellcheck disable=SC2046  # names of packages: no spaces in them
  (step "Packages that lack a file" remove $(echo "$found" | cut -d : -f 1)) ||
    refuse "$venv is damaged and cannot be mended: delete it and call again" 1
fi
step "$torch for $backend" install_torch
[ -z "${ONLY_TORCH:-}" ] || exit 0
set -- requirements/lock.txt "$@" # whole sets of exact versions: nothing to resolve
for file; do
  step "Packages of $file" install --no-deps --require-hashes -r "$file"
done
step "grpolab, editable" install --no-deps --no-build-isolation --editable .
step "Check" check

"$venv/bin/python" -P - "$(($(seconds) - begun))" <<'PYTHON'
import platform, sys, torch
cuda = "available" if torch.cuda.is_available() else "not available"
print(f"Ready in {sys.argv[1]} s: Python {platform.python_version()}, torch {torch.__version__}, CUDA {cuda}")
PYTHON
