"""Where and how a run is done, and what is measured beside: nothing that decides what is learnt."""

from __future__ import annotations

from pydantic import Field

from grpolab.settings.base import Count, Natural, NonNegative, Positive, Settings


class EvaluationSettings(Settings):
    """Held-out evaluation, with noise that all arms share."""

    every: Count = Field(description="Rollout steps between evaluations; also before the first and after the last.")
    items: Count = Field(description="Evaluation prompts.")
    batch_size: Count = Field(description="Prompts in one forward.")
    samples: Count = Field(description="Completions per prompt where many answers are right (pass@k's k).")


class DiagnosticsSettings(Settings):
    """What is measured beyond the cheap; each switch removes its cost."""

    quantiles: bool = Field(description="Ratio quantiles by level and advantage sign, at every optimiser step.")
    counterfactual: bool = Field(description="What other epsilons would have clipped, at every optimiser step.")
    clip_conventions: bool = Field(description="The clip fraction by each framework's definition, at every update.")
    histogram_every: Natural = Field(description="Rollout steps between two histograms of ratios; 0: never.")
    samples_every: Natural = Field(description="Rollout steps between two tables of completions; 0: never.")
    step_norm: bool = Field(description="How far the weights moved in each rollout step.")
    kl_ref_every: Natural = Field(description="Rollout steps between two exact KLs to the warm start; 0: never.")


class MachineSettings(Settings):
    """Where and how, never what: no key here enters a signature."""

    results: str = Field(min_length=1, description="Folder of runs, studies and the MLflow store.")
    tracking_uri: str | None = Field(
        description="MLflow store; `auto` is SQLite inside the results folder, empty switches tracking off."
    )
    threads: Count = Field(description="torch threads of one worker.")
    checkpoint_seconds: NonNegative = Field(
        description="Least seconds between two checkpoints (at rollout boundaries)."
    )
    # Limits of a worker, which the parent of a sweep watches; empty: none.
    cell_timeout_seconds: Positive | None = Field(
        description="Most wall seconds of a cell in one sitting; it then fails, and --retry-failed goes on from there."
    )
    hang_seconds: Positive | None = Field(
        description="Most seconds in which a worker finishes no step; the cell is tried once more, and then fails."
    )
    memory_mib: Count | None = Field(
        description="Most resident memory of a worker; the cell that passes it fails. The imports alone take about 400."
    )
