// One run: its curves beside the baseline's of the same seed, what it set, how it ended, what the doctor found.

import { chartsIn } from "./chart.js";
import { armColour, ink } from "./colours.js";
import { AXES, metricsOf, placeOf, studyOf, traceOf } from "./document.js";
import { seenIn } from "./drawing.js";
import { button, element, safeAddress, soft, table } from "./elements.js";
import { metricSearch } from "./metric_search.js";
import { duration, number } from "./numbers.js";
import { average } from "./statistics.js";

const USUAL = ["reward/mean", "entropy/behaviour", "clip/active", "ratio/token_max", "kl_old/k3", "grad_norm"];

/** Show the run that the state names; null if there is none. @param {HTMLElement} root @param {App} app @returns {View | null} */
export function runDetail(root, app) {
  const { sweep, go } = app;
  const place = placeOf(sweep, app.state.run, studyOf(sweep, app.state.study));
  if (!place) return null;
  const { run, study, arm, facet, cell } = place;
  const title = `${arm.name}, ${facet}, seed ${cell[3]}`;
  const near = study.cells.filter(([, , f, seed]) => f === cell[2] && seed === cell[3]);
  const base = sweep.runs[near.find(([, a]) => study.arms[a].name === study.baseline)?.[0] ?? -1];
  const other = base === run ? null : base;
  const chosen = () => (app.state.metrics.length ? app.state.metrics : [study.score.metric, ...USUAL]).filter((name) => name in sweep.metrics);
  const add = (/** @type {string} */ name) => go({ metrics: [...new Set([...chosen(), name])] });
  const search = metricSearch("add a curve", sweep.metrics, () => metricsOf(sweep, study), add);
  const addresses = { folder: safeAddress(run.folder), MLflow: safeAddress(run.mlflow) };
  const links = Object.entries(addresses).map(([name, href]) => href && element("a", { href }, name));
  const kept = sweep.samples.some((sample) => sweep.runs[sample.run] === run);
  const tokens = kept && button("its tokens", () => go({ tab: "tokens", sample: run.signature }, true));
  const dot = element("i", { class: "dot", style: `background: ${armColour(arm.colour)}` });
  const ended = `${run.outcome}${run.lost && run.lost !== run.outcome ? `, ${run.lost}` : ""} after ${number(run.steps)} rollout steps`;
  const where = run.marks.map(([step, says]) => `; ${says} at step ${step} (a line in the curves)`).join("");
  const why = (run.seconds ? `, ${duration(run.seconds)}` : "") + where + (run.reason ? `: ${run.reason}` : "");
  const settings = Object.entries(run.settings);
  const findings = run.findings.map(({ confidence, cause, says, evidence, remedy }) => {
    const lines = element("ul", {}, ...evidence.map((line) => element("li", {}, line)));
    return element("li", {}, element("b", {}, cause), ` (${confidence}): ${says}`, lines, remedy && element("p", {}, `Remedy: ${remedy}`));
  });
  const differ = table("settings that differ, in brackets the baseline's", ["setting", "value"], settings);
  const sides = [
    settings.length ? differ : soft("Every setting is the baseline's."),
    findings.length ? element("ul", { class: "findings" }, ...findings) : soft("The doctor found nothing."),
  ];
  const panels = element("div", { class: "panels" });
  const parts = [
    element("header", {}, element("h2", {}, dot, title), element("code", {}, run.signature), ...links, tokens, button("close", () => go({ run: "" }))),
    element("p", { class: run.outcome !== "completed" && "warn" }, ended + why),
    element("div", { class: "sides" }, ...sides),
    element("div", { class: "controls" }, search.node, soft(`${other ? "Grey: the baseline's run of the same seed. " : ""}A click on a title takes its curve away.`)),
  ];
  root.append(element("article", { class: "run" }, ...parts, panels));
  const charts = chartsIn(panels, (zoom) => go({ zoom, x: "rollout_step" }), (title) => go({ metrics: chosen().filter((name) => name !== title) }));

  /** @param {Run} one @param {Arm} look @param {string} name */
  const lineOf = (one, look, name) => {
    const trace = traceOf(one, name, "rollout_step", cell[3], true);
    return trace ? [{ ...look, mean: average([trace], { t95: sweep.t95 }), traces: [] }] : [];
  };
  return {
    update({ x, zoom }) {
      const grey = { name: study.baseline, colour: ink("faint"), dash: [] };
      const panels = chosen().map((name) => {
        const theirs = other ? lineOf(other, grey, name) : [];
        return { title: name, row: name, arms: [...theirs, ...lineOf(run, arm, name)] };
      });
      const names = { title, x: AXES.rollout_step, y: "as the titles say", note: `run ${run.signature}`, marks: run.marks.map(([step]) => step) };
      charts.draw({ ...names, panels, log: false, seeds: false, zoom: x === "rollout_step" ? zoom : [], reference: null });
    },
    seen: () => seenIn(charts.picture, `run ${run.signature}`),
    ...charts,
  };
}
