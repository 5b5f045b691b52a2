// The tab of curves: one metric of one study, a panel for each facet, an arm always in its colour.

import { chartsIn } from "./chart.js";
import { armColour, isDark } from "./colours.js";
import { AXES, axesOf, metricsOf, studyOf } from "./document.js";
import { seenIn } from "./drawing.js";
import { button, choice, element, shape, soft, switcher, table } from "./elements.js";
import { metricSearch, unitOf } from "./metric_search.js";
import { number } from "./numbers.js";
import { baselineOf, NAMES, pictureOf } from "./panels.js";

const PAIRED = "each seed minus the baseline's run of the same seed; a factor where y is logarithmic";
const PRESS = "click: on or off; double click, or Shift and Enter: this one alone";

/** @param {HTMLElement} root @param {App} app @returns {View} */
export function curvesView(root, app) {
  const { sweep, go } = app;
  const study = () => studyOf(sweep, app.state.study);
  const search = metricSearch("metric", sweep.metrics, () => metricsOf(sweep, study()), (metric) => go({ metric, zoom: [] }));
  const another = (/** @type {string} */ name) => go({ study: name, off: [], to: "", facet: "", zoom: [] });
  const studies = choice("study", sweep.studies.map(({ name }) => name), another);
  const axis = choice("x axis", [], (x) => go({ x, zoom: [] }));
  const smoothing = choice("smooth", Object.entries(NAMES), (value) => go({ smooth: value }));
  const lines = switcher("lines", [["mean", "mean", "over seeds, with its 95% interval"], "seeds"], (value) => go({ lines: value }));
  const show = switcher("values", ["absolute", ["difference", "difference", PAIRED]], (value) => go({ show: value }));
  const to = choice("to", [], (name) => go({ to: name }));
  const log = button("log y", () => go({ log: !app.state.log }), { title: "logarithmic y axis" });
  const whole = button("show everything", () => go({ zoom: [], facet: "" }));
  const heading = element("p", { class: "metric" });
  const legend = element("div", { class: "legend", role: "group", "aria-label": "arms" });
  const [panels, behind] = ["panels", "behind"].map((name) => element("div", { class: name }));
  const note = element("p", { class: "note" });
  const many = sweep.studies.length > 1 && studies.node;
  root.append(
    element("div", { class: "controls" }, search.node, many, axis.node, smoothing.node, lines.node, show.node, to.node, log, whole),
    element("figure", { class: "curves" }, heading, legend, panels, note, behind),
  );
  const charts = chartsIn(panels, (zoom) => go({ zoom }), (facet) => go({ facet: app.state.facet ? "" : facet }));

  /** @param {string} name @param {MouseEvent} event */
  const press = (name, event) => {
    const flip = (/** @type {string[]} */ off) => (off.includes(name) ? off.filter((one) => one !== name) : [...off, name]);
    const { off } = app.state;
    if (event.detail !== 2 && !event.shiftKey) return go({ off: flip(off) });
    const before = event.shiftKey ? off : flip(off); // the first click of a double click has switched it already
    const others = study().arms.map((arm) => arm.name).filter((one) => one !== name);
    go({ off: !before.includes(name) && others.every((one) => before.includes(one)) ? [] : others });
  };

  return {
    update(state) {
      const current = study();
      const picture = pictureOf(sweep, current, state);
      const metric = state.metric in sweep.metrics ? state.metric : current.score.metric;
      const axes = axesOf(sweep, current, metric);
      const difference = current.paired && state.show === "difference";
      search.set(metric);
      studies.set(current.name);
      axis.set(axes.includes(state.x) ? state.x : "rollout_step", axes.map((name) => [name, AXES[name]]));
      smoothing.set(state.smooth);
      smoothing.node.hidden = sweep.metrics[metric]?.kind === "evaluation";
      lines.set(state.lines);
      show.set(difference ? "difference" : "absolute");
      show.node.hidden = !current.paired;
      to.node.hidden = !difference;
      to.set(current.arms[baselineOf(current, state)].name, current.arms.map((arm) => arm.name));
      log.setAttribute("aria-pressed", String(state.log));
      whole.hidden = !state.zoom.length && !state.facet;
      const { meaning = "", unit = "" } = sweep.metrics[metric] ?? {};
      heading.replaceChildren(element("b", {}, picture.title), unitOf({ unit: picture.reference === 1 ? "" : unit }), soft(meaning));
      showLegend(legend, current, state, press);
      charts.draw(picture);
      const none = picture.panels.every(({ arms }) => !arms.length) && !state.off.length;
      note.textContent = none ? `No run of this study has numbers of ${metric}.` : `x: ${picture.x}. ${picture.note}`;
      // The table costs more than the chart, and nobody waits for it.
      behind.replaceChildren();
      setTimeout(() => charts.picture === picture && behind.replaceChildren(...tablesOf(picture)), 50);
    },
    seen: () => seenIn(charts.picture, `${study().name} ${charts.picture.title}`),
    find: search.focus,
    ...charts,
  };
}

/** The buttons stay where they are while the study does, so that a double click meets the same one twice.
 * @param {HTMLElement} legend @param {Study} study @param {State} state @param {(name: string, event: MouseEvent) => void} press */
function showLegend(legend, study, state, press) {
  const shown = `${study.name} ${isDark()}`;
  if (legend.dataset.shown !== shown) {
    legend.dataset.shown = shown;
    const buttons = study.arms.map((arm) => {
      const onclick = (/** @type {MouseEvent} */ event) => press(arm.name, event);
      const line = { d: "M0 5h26", fill: "none", stroke: armColour(arm.colour), "stroke-width": 2.5, "stroke-dasharray": arm.dash.join(" ") || null };
      const swatch = shape("svg", { width: 26, height: 10, "aria-hidden": "true" }, shape("path", line));
      return element("button", { type: "button", title: PRESS, onclick }, swatch, arm.name, arm.name === study.baseline && soft("baseline"));
    });
    legend.replaceChildren(...buttons);
  }
  Array.from(legend.children).forEach((one, i) => one.setAttribute("aria-pressed", String(!state.off.includes(study.arms[i].name))));
}

/** The chart in words: a table a panel, a row a step, of at most fifty steps; CSV has them all. @param {Picture} picture */
function tablesOf(picture) {
  return picture.panels.map(({ title, arms }) => {
    const steps = [...new Set(arms.flatMap((arm) => Array.from(arm.mean.steps)))].sort((a, b) => a - b);
    const every = Math.ceil(steps.length / 50);
    const kept = steps.filter((_, i) => i % every === 0 || i === steps.length - 1);
    const rows = kept.map((step) => {
      const cells = arms.flatMap(({ mean: { steps, y, low, high, n } }) => {
        const i = steps.indexOf(step);
        return i < 0 ? ["", "", ""] : [number(y[i], 4), `[${number(low[i])}, ${number(high[i])}]`, String(n[i])];
      });
      return [number(step), ...cells];
    });
    const caption = `${title}: ${picture.title}, mean over seeds${every > 1 ? `; one step in ${every}` : ""}`;
    return table(caption, ["rollout step", ...arms.flatMap((arm) => [arm.name, "95%", "n"])], rows);
  });
}
