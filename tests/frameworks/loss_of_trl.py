"""Run by a Python with TRL: {options, inputs} in each line of stdin; on stdout its config, loss and gradient."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from trl_vectors import CHOICES, FIXED, outputs

READ = [*CHOICES, *FIXED, "num_iterations", "num_generations", "per_device_train_batch_size"]

for line in sys.stdin:
    case = json.loads(line)
    given = {"bf16": False, **case["options"], "use_cpu": True, "output_dir": case["folder"]}
    config = GRPOConfig(**given)
    options = {name: getattr(config, name) for name in READ}
    if not config.use_vllm:
        options["vllm_importance_sampling_mode"] = None
    found = outputs(options, case["inputs"])
    found["options"] = {name: value for name, value in options.items() if isinstance(value, int | float | str)}
    print(json.dumps({**found, "grad_norm": float(np.linalg.norm(found["grad_logprobs"]))}))
