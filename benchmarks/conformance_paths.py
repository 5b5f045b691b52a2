"""The conformance tests on every code path of the math libraries that this CPU has: `conformance_paths.py`.

MKL's and torch's exp, log and sums differ between instruction sets by a unit in the last place. For each path: whether
float32 exp differs from that of the path that is taken unasked, and what the tests say.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

TESTS = "tests/frameworks"
PATHS = (
    {},
    {"MKL_CBWR": "COMPATIBLE"},
    {"MKL_CBWR": "AVX2"},
    {"MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    {"ATEN_CPU_CAPABILITY": "default"},  # torch's own functions without vector instructions
)
DIGEST = """
import hashlib, torch
x = torch.linspace(-20, 20, 100_003)
print(hashlib.sha256(x.exp().numpy().tobytes()).hexdigest())
"""


def reason_against(path: dict[str, str]) -> str | None:
    """Why a path does not exist here; None where it does."""
    if any(name.startswith("MKL") for name in path) and not torch.backends.mkl.is_available():
        return "this build of torch has no MKL"
    capability = torch.backends.cpu.get_cpu_capability()
    if "AVX512" in path.values() and capability != "AVX512":
        return f"this CPU has no AVX-512 ({capability})"
    if "AVX2" in path.values() and capability not in ("AVX2", "AVX512"):
        return f"this CPU has no AVX2 ({capability})"
    return None


def main() -> int:
    """0 where the tests pass on every path that exists here."""
    root, failed, unasked = Path(__file__).parents[1], 0, b""
    chosen = {name for path in PATHS for name in path}
    bare = {name: value for name, value in os.environ.items() if name not in chosen}
    for path in PATHS:
        name = " ".join(f"{key}={value}" for key, value in path.items()) or "unset"
        if (reason := reason_against(path)) is not None:
            print(f"{name:<32} not run: {reason}", flush=True)
            continue
        environment = {**bare, **path, "OMP_NUM_THREADS": "1"}
        digest = subprocess.check_output([sys.executable, "-c", DIGEST], env=environment)
        unasked = unasked or digest
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", TESTS]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
        failed += done.returncode != 0
        last = done.stdout.strip().splitlines()[-1]
        exp = "as unset" if digest == unasked else "differs"
        print(f"{name:<32} float32 exp {exp:<10} {last.strip('= ')}", flush=True)
        if done.returncode:
            print(done.stdout)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
