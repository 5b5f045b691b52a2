"""GRPO Lab from Python: `import grpolab as gl`.

    study = gl.train("task=addition", epsilon_high=0.28, seed=3)    trains one run, as `grpolab train` does
    study = gl.sweep("clip_range", seeds=[0, 1])                    trains what a study lacks, as `grpolab sweep` does
    study = gl.load("clip_range")                                   tables of what was trained
    gl.compare(study, "clip_higher", "symmetric")                   differences by seed, with their intervals
    gl.decide(study)                                                verdicts on the study's hypotheses
    loss_of = gl.objective(dialect="verl")                          a loss for the tensors of your own trainer
    print(gl.diagnose("trainer_state.json"))                        what is wrong with a run

A wrong request raises `grpolab.errors.RequestError`, with one sentence for each problem, before anything starts. What
`grpolab.__all__` names is stable: a name that is to go warns for at least one minor version before it does.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from grpolab.errors import RequestError, listing
from grpolab.paths import SWEEP_STUDY, Results
from grpolab.quantities import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from grpolab.doctor import Diagnosis
    from grpolab.grpo.aggregation import Totals
    from grpolab.report.load import StudyRuns
    from grpolab.report.tables import Table
    from grpolab.settings.resolved import Resolved

TABLES = ("scores", "dispersion", "stability", "clipping", "verdicts")
PLAIN = re.compile(r"[\w./:~+-]+")  # text that Hydra's grammar takes without quotes
SAMPLES = ["study", "variant", "arm", "facet", "seed", "signature"]  # of a run, before the columns of its samples


class Picture(NamedTuple):
    """A figure of the catalogue with its caption; a notebook shows both."""

    figure: Figure
    caption: str
    alt: str  # the picture in words

    def _repr_html_(self) -> str:
        from grpolab.report.style import png

        image = f"data:image/png;base64,{b64encode(png(self.figure)).decode()}"
        words = html.escape(self.caption)
        return f'<figure><img alt="{html.escape(self.alt)}" src="{image}"><figcaption>{words}</figcaption></figure>'


@dataclass(frozen=True, eq=False)
class LoadedStudy:
    """The runs of a study as tidy tables; of a collection, those of all its studies. `load` makes it.

    Every table has the columns study, variant, arm, facet, seed, signature and `factor/NAME`: `arm` is the level of the
    factor that the study compares, `facet` joins the levels of its other factors, `signature` names the run.
    """

    loaded: tuple[StudyRuns, ...]  # of a collection: its studies, then itself, which has no runs
    note: str = ""  # which study this is and where it is, where `load` chose it

    @property
    def name(self) -> str:
        return self.loaded[-1].name

    @property
    def question(self) -> str:
        return str(self.loaded[-1].plan.get("question", ""))

    @property
    def parts(self) -> list[LoadedStudy]:
        """The studies that have runs, each by itself."""
        return [LoadedStudy((part,)) for part in self._with_runs]

    @property
    def _with_runs(self) -> list[StudyRuns]:
        return [part for part in self.loaded if len(part.cells)]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each planned run: its outcome (`missing` if it has none), `setting/KEY`, and its quantities.

        Those are `final_score`, `gain`, `lost`, `drawdown` and the others of `grpolab.quantities`, each a share of 1,
        a count or a label; NaN for a run without a result.
        """
        from grpolab.report.load import KEYS
        from grpolab.report.measures import stability_table

        tables = ((part.cells, stability_table(part)[[*KEYS, *QUANTITIES]]) for part in self._with_runs)
        return _join(cells.merge(quantities, on=KEYS, how="left") for cells, quantities in tables)

    @cached_property
    def updates(self) -> pd.DataFrame:
        """One row for each optimiser step, with the metrics of kind `update` (docs/metrics.md).

        Of runs in the committed outcome only those are kept that a committed figure shows.
        """
        return _join(part.updates for part in self.loaded)

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """One row for each rollout step, with the metrics of kind `rollout`."""
        return _join(part.rollouts for part in self.loaded)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row for each evaluation; `carried` marks those that repeat the last one of a run that broke off."""
        return _join(part.evaluations for part in self.loaded)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row for each token that runs kept (`diagnostics.samples_every`), with its run and `rollout_step`.

        Empty where they kept none; the committed outcome has none. Raises Damaged for a file that cannot be read.
        """
        from grpolab.report.journals import read_samples

        frames = []
        for run in self.runs[SAMPLES].to_dict("records"):
            folder = self.loaded[-1].results.run(run["signature"]) / "samples"
            for file in sorted(folder.glob("step_*.parquet")):
                place = {**run, "rollout_step": int(file.stem.removeprefix("step_"))}
                tokens = read_samples(file)
                frames.append(tokens.assign(**{key: place[key] for key in place if key not in tokens}))
        return _join(frames)

    def figure(self, name: str) -> Picture:
        """Draw a figure of the catalogue, e.g. `F1`. Raises RequestError for an unknown one."""
        from grpolab.report.figures import draw

        figure, manifest = draw(self.loaded[-1], name)
        return Picture(figure, manifest.caption, manifest.alt)

    def table(self, name: str) -> Table:
        """Make one of TABLES: `numbers` at full precision, `shown` for a reader, `caption`.

        Verdicts are those of all studies of a collection, the others of one study. Raises RequestError for another
        name.
        """
        from grpolab.report import claims, tables

        if name not in TABLES:
            raise RequestError(f"table={name} is not one of {', '.join(TABLES)}")
        if name == "verdicts":
            return tables.verdicts([claim for claim in claims.decide(self.loaded) if claim.is_finding])
        table: Table = getattr(tables, name)(self.loaded[-1])
        return table

    def sentences(self) -> list[str]:
        """Return what the runs of one study show, in sentences computed from their journals."""
        from grpolab.report.sentences import findings

        return findings(self.loaded[-1])

    def diagnosis(self) -> str:
        """Return the report's section about lost runs and their causes, as Markdown; empty without runs."""
        from grpolab.doctor.section import section

        return section(self._with_runs)

    def screen(self) -> str:
        """Return what `grpolab report --brief` prints: the answer, as far as these runs give one."""
        from grpolab.report import brief, claims

        return brief.screen(self.loaded, claims.decide(self.loaded))


def load(study: str | None = None, *, results: str | Path | None = None, committed: str = SWEEP_STUDY) -> LoadedStudy:
    """Load what was trained of a study: from run folders, else from the committed outcome.

    Without a name it is the study that was swept last in `results`, or the `committed` one where none was;
    `GRPOLAB_STUDY` names another. `results` is a results folder (default: `GRPOLAB_RESULTS`, else `machine.results` of
    conf/run.yaml). Raises RequestError for a study that is not known there.
    """
    from grpolab.cli.common import machine_defaults
    from grpolab.report import load as tables
    from grpolab.report.notebook import choose_study

    folder = Results.open(results or os.environ.get("GRPOLAB_RESULTS") or machine_defaults()["results"])
    name, note = (study, "") if study else choose_study(folder, committed)
    return LoadedStudy(tuple(tables.load(folder, name)), note)


def train(*overrides: str, name: str = "adhoc", **settings: Any) -> LoadedStudy:
    """Train one run in this process and return it; a run that has its outcome is not trained again.

    `overrides` are Hydra's (`"task=addition"`, `"warm_start.target_accuracy=0.2"`), `settings` the same as keywords.
    `name` is the study under which report and MLflow show it. Raises RequestError for wrong settings; a run that
    failed has that outcome in `runs`.
    """
    _do(["train", *overrides, *to_overrides(settings), "--name", name])
    return load(name, results=_results_of(overrides, settings))


def sweep(
    study: str, *overrides: str, seeds: int | Iterable[int] = (), jobs: int | None = None, **settings: Any
) -> LoadedStudy:
    """Train what a study of experiments/ lacks, on `jobs` worker processes, draw its report, and return its runs.

    `overrides` and `settings` hold for every run. `seeds`: how many, or which; without, the study's own.
    """
    seeds = list(range(seeds) if isinstance(seeds, int) else seeds)
    chosen = [f"--seeds={','.join(map(str, seeds))},"] if seeds else []
    _do(["sweep", study, *overrides, *to_overrides(settings), *chosen, *(["--jobs", str(jobs)] if jobs else [])])
    return load(Path(study).stem, results=_results_of(overrides, settings))


def compare(study: LoadedStudy, of: str, minus: str | None = None, quantity: str = "final_score") -> pd.DataFrame:
    """Subtract one arm from another, by default from the baseline, in each facet where both have runs.

    `quantity` is one of `grpolab.quantities` or a metric of the journal, whose mean over a run is taken. Columns:
    study, facet, of, minus, quantity, mean_of, mean_minus, difference, low and high (95% interval), p (that the
    difference is 0, for this row alone), n (seeds), paired. A description: `decide` corrects for many tests. Raises
    RequestError for an arm or a quantity that the study does not have.
    """
    from grpolab.report.measures import at, difference, measure

    rows, arms = [], dict[str, None]()
    for part in study._with_runs:
        other = part.baseline if minus is None else minus
        arms |= dict.fromkeys(part.arms)
        if not {of, other} <= set(part.arms):
            continue
        values = measure(part, quantity)
        for facet in part.facets:
            gap = difference(part, values, facet, of, other)
            if gap.n:
                means = {"mean_of": at(values, facet, of).mean(), "mean_minus": at(values, facet, other).mean()}
                pair = {"study": part.name, "facet": facet, "of": of, "minus": other, "quantity": quantity}
                numbers = {"difference": gap.effect, "low": gap.low, "high": gap.high, "p": gap.p, "n": gap.n}
                rows.append({**pair, **means, **numbers, "paired": part.is_paired})
    for arm in (of, minus):
        if arm is not None and arm not in arms:
            raise RequestError(f"arm={arm} is no arm of study={study.name}, whose arms are {listing([*arms])}")
    columns = ["study", "facet", "of", "minus", "quantity", "mean_of", "mean_minus"]
    return pd.DataFrame(rows, columns=[*columns, "difference", "low", "high", "p", "n", "paired"])


def decide(study: LoadedStudy) -> pd.DataFrame:
    """Decide a study's hypotheses, as its report does: one row each, at each setting that it does not fix.

    Columns: study, id, kind (question, consequence or repetition), verdict (supported, opposite, negligible,
    inconclusive, void; holds or fails for what is true by construction), label (confirmatory or exploratory), sentence
    (verdict and effect in words), effect, low and high (in units of the margin), n (seeds), p (after Holm's correction
    within the study), q (over all studies).
    """
    from grpolab.report.claims import decide as decide_claims

    names = ["study", "id", "where", "kind", "verdict", "label", "sentence", "effect", "low", "high", "n"]
    rows = [
        {**{name: getattr(claim, name) for name in names}, "p": claim.adjusted_p, "q": claim.q}
        for claim in decide_claims(study.loaded)
    ]
    return pd.DataFrame(rows, columns=[*names, "p", "q"])


def diagnose(run: str | Path, framework: str | None = None, *, results: str | Path | None = None) -> Diagnosis:
    """Find what is wrong with a run: a run folder, its signature, a log or a trainer's folder.

    `framework` wrote the log (default: the one whose metrics it has). `str()` of the result is what `grpolab diagnose`
    prints; `findings` are the causes, surest first. Raises RequestError for what is no run.
    """
    from grpolab.cli import parse
    from grpolab.cli.reading import evidence_of
    from grpolab.doctor import examine

    options = {"--from": framework, "--results": results}
    words = [str(word) for name, value in options.items() if value for word in (name, value)]
    return examine(evidence_of(parse(["diagnose", str(run), *words])))


def objective(*overrides: str, **settings: Any) -> LossFunction:
    """Return the loss of some settings, as a function of your own trainer's tensors.

    `gl.objective(dialect="trl")` is TRL's loss with TRL's defaults and metrics, `gl.objective(loss_type="dapo",
    epsilon_high=0.28)` ours. Raises RequestError for wrong settings.
    """
    from grpolab.settings.resolved import resolve_run
    from grpolab.sweep.compose import compose

    return LossFunction(resolve_run(compose([*overrides, *to_overrides(settings)])))


@dataclass(frozen=True)
class LossFunction:
    """The loss of some settings; call it with a minibatch. `objective` makes it."""

    settings: Resolved

    def __call__(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages: Tensor,
        mask_BT: Tensor,
        *,
        totals: Totals | None = None,
        **others: Tensor | None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss to minimise, and the metrics of this minibatch under our names and the framework's own.

        `log_probs_BT` has the gradient; `advantages` is (B,), (B, 1) or (B, T); `mask_BT` is True at completion tokens.
        `others`: `reference_log_probs_BT` (where beta > 0), `sampler_log_probs_BT` (where a rule compares the sampler),
        `entropy_BT` (where there is an entropy term), `noise_BT` (uniform, where the surrogate draws tokens), and what
        only some frameworks read: `rewards_B1` and `group_B` (integers: rows of one prompt have one number). If the
        tensors are a micro-batch, `totals` counts its whole minibatch (`grpolab.grpo.aggregation.Totals`), and losses
        of micro-batches add up.

        Raises RequestError for a tensor that the settings need and that is not given, or whose shape does not fit.
        """
        import torch

        from grpolab.frameworks.framework import compute_metrics, load_framework
        from grpolab.grpo.aggregation import Totals
        from grpolab.grpo.loss import CORE, LossInputs, policy_loss
        from grpolab.grpo.metrics import UpdateTensors, update_metrics

        settings = self.settings
        chosen = settings.objective
        tensors: dict[str, Any] = {"log_probs_BT": log_probs_BT, "old_log_probs_BT": old_log_probs_BT, **others}
        self._check(tensors, advantages, mask_BT)
        rows_B = advantages[:, None] if advantages.dim() == 1 else advantages
        counts = totals or Totals.of(mask_BT.bool(), settings.max_completion_length)
        inputs = LossInputs(advantages=rows_B, mask_BT=mask_BT.bool(), totals=counts, **tensors)
        recipe = load_framework(settings.framework) if settings.framework else CORE
        loss = policy_loss(chosen, inputs, recipe)
        with torch.no_grad():
            known = inputs.detached()
            if known.entropy_BT is None:
                known = replace(known, entropy_BT=torch.zeros_like(log_probs_BT))
            log_ratio_BT = torch.where(known.mask_BT, loss.log_ratio_BT, 0.0)
            update = UpdateTensors(known, log_ratio_BT, loss.surrogate)
            metrics = update_metrics(update, settings.diagnostics) if known.mask_BT.any() else {}
            if inputs.entropy_BT is None:
                metrics.pop("entropy/current", None)
            if settings.framework:
                logged = compute_metrics(settings.framework, chosen, inputs, loss)
                metrics |= {f"{settings.framework}/{name}": value for name, value in logged.items()}
        return loss.total, metrics

    def _check(self, tensors: Mapping[str, Tensor | None], advantages: Tensor, mask_BT: Tensor) -> None:
        from grpolab.registry import SURROGATES

        chosen, problems = self.settings.objective, list[str]()
        rules = ("sampler_correction", "off_policy_mask_threshold", "sampler_rejection")
        needed = {
            "reference_log_probs_BT": f"beta={chosen.beta}" if chosen.beta else "",
            "sampler_log_probs_BT": next((rule for rule in rules[::2] if getattr(chosen, rule) is not None), ""),
            "entropy_BT": "entropy_coef" if chosen.entropy_coef else "",
            "noise_BT": f"kernel={chosen.kernel}" if SURROGATES[chosen.kernel].draws_tokens else "",
        }
        if chosen.top_entropy_quantile is not None:
            needed["entropy_BT"] = "top_entropy_quantile"
        problems += [f"{key} needs {name}" for name, key in needed.items() if key and tensors.get(name) is None]
        shape = tuple(mask_BT.shape)
        for name, tensor in tensors.items():
            if tensor is not None and name.endswith("_BT") and tuple(tensor.shape) != shape:
                problems.append(f"{name} has shape {tuple(tensor.shape)}, mask_BT has {shape}: they must be equal")
        if tuple(advantages.shape) not in (shape[:1], (*shape[:1], 1), shape):
            problems.append(
                f"advantages has shape {tuple(advantages.shape)}: for a mask of {shape} it is (B,) or (B, T)"
            )
        if problems:
            raise RequestError(problems)


def to_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as Hydra overrides: `{"epsilon_high": 0.28}` is `epsilon_high=0.28`, None is `null`."""
    return [f"{key}={_to_hydra(value)}" for key, value in settings.items()]


def _to_hydra(value: Any) -> str:
    if isinstance(value, str | Path):
        return text if PLAIN.fullmatch(text := str(value)) else json.dumps(text, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_to_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_to_hydra, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def _do(words: list[str]) -> None:
    """Do a command of the command line in this process."""
    from grpolab.cli import parse

    parsed = parse(words)
    parsed.command(parsed)


def _results_of(overrides: Iterable[str], settings: Mapping[str, Any]) -> str:
    """Return the results folder that a run or sweep goes into, as the command line chooses it."""
    from grpolab.cli.common import machine_defaults

    named = [text.partition("=")[2] for text in overrides if text.startswith("machine.results=")]
    return str(settings.get("machine.results") or (named or [machine_defaults()["results"]])[-1])


def _join(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Join tables; those without rows say nothing about the columns of the others."""
    kept = [frame for frame in frames if len(frame)]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame()
