// What Curves shows, as numbers: a panel for each facet, in it the arms with their means and single seeds.

import { AXES, axesOf, runsOf, traceOf } from "./document.js";
import { average, extent, paired, smooth } from "./statistics.js";

export const GAP = 14; // between panels, in pixels
/** @type {Record<string, number>} */
const SMOOTH = { none: 0, tenth: 20, fifth: 10 };
/** @type {Record<string, string>} */
export const NAMES = { none: "none", tenth: "a tenth", fifth: "a fifth" };

/** Return what a state shows of a study. The table, the chart and every saved file are made from it.
 * @param {Sweep} sweep @param {Study} study @param {State} state @returns {Picture} */
export function pictureOf(sweep, study, state) {
  const metric = state.metric in sweep.metrics ? state.metric : study.score.metric;
  const to = baselineOf(study, state);
  const difference = state.show === "difference" && study.paired;
  const factors = difference && state.log;
  const seeds = state.lines === "seeds";
  const x = axesOf(sweep, study, metric).includes(state.x) ? state.x : "rollout_step";
  const { unit = "", of_step: ofStep, share, kind } = sweep.metrics[metric] ?? {};
  const parts = kind === "evaluation" ? 0 : SMOOTH[state.smooth];
  /** @type {(arm: number, facet: number, peaks?: boolean) => Trace[]} */
  const traces = (arm, facet, peaks) => {
    const own = runsOf(sweep, study, arm, facet).flatMap(({ run, seed }) => traceOf(run, metric, x, seed, peaks) ?? []);
    return smooth(own, parts, state.log);
  };
  const many = study.arms.filter(({ name }) => !state.off.includes(name)).length > 6;
  const panels = study.facets.flatMap((title, facet) => {
    if (state.facet && state.facet !== title) return [];
    const others = difference ? traces(to, facet) : [];
    const arms = study.arms.flatMap((arm, index) => {
      if (state.off.includes(arm.name) || (difference && index === to)) return [];
      const mine = difference ? paired(traces(index, facet), others, factors) : traces(index, facet);
      const lines = !seeds ? [] : difference || parts ? mine : traces(index, facet, true);
      // A mean of fewer than half of the seeds would depend on which are left. Evaluations are carried forward.
      const fewest = kind === "evaluation" ? 1 : mine.length / 2;
      const how = { t95: sweep.t95, log: state.log, share: share && !difference, fewest };
      return mine.length ? [{ ...arm, mean: average(mine, how), traces: lines, plain: many && index !== to }] : [];
    });
    return [{ title, row: rowOf(study, title), arms }];
  });
  const word = factors ? "factor" : "difference";
  const names = {
    title: difference ? `${metric}: ${word} to ${study.arms[to].name}, paired by seed` : metric,
    y: (difference ? `${word} of ${metric}` : metric) + (unit && unit !== "1" && !factors ? `, ${unit}` : ""),
    note: noteOf(sweep, state, { of_step: ofStep, kind }) + (many ? " Of so many arms only the baseline's band is shown." : ""),
  };
  return { ...names, x: AXES[x], panels, log: state.log, seeds, zoom: state.zoom, reference: difference ? Number(factors) : null, marks: [] };
}

/** @param {Study} study @param {State} state */
export function baselineOf(study, state) {
  const names = study.arms.map((arm) => arm.name);
  return Math.max(0, names.indexOf(names.includes(state.to) ? state.to : study.baseline));
}

/** Panels of one task share their y axis and stand in one row, where facets are a task and something else.
 * @param {Study} study @param {string} facet */
function rowOf(study, facet) {
  const [task, ...rest] = facet.split("/");
  const many = study.facets.some((other) => other !== facet && other.startsWith(`${task}/`));
  return rest.length && many ? task : facet;
}

/** @param {Sweep} sweep @param {State} state @param {Partial<Metric>} metric */
function noteOf(sweep, state, { of_step: ofStep, kind }) {
  const mean = state.log ? "Geometric mean over seeds; band: 95% t-interval of the logarithms." : "Mean over seeds; band: 95% interval of the mean.";
  const joined = { mean: "mean", max: "largest", min: "smallest" }[ofStep ?? ""];
  const smoothed = kind !== "evaluation" && state.smooth !== "none";
  const parts = [
    state.lines === "seeds" ? "A line per seed." : mean,
    smoothed && `Of each seed first the moving mean over about ${NAMES[state.smooth]} of the steps (fewer at the start).`,
    joined && `Updates of one rollout step: their ${joined}.`,
    sweep.thinning.every > 1 && sweep.thinning.says,
  ];
  return parts.filter(Boolean).join(" ");
}

/** Return every line that is drawn in a panel, with the arm that it belongs to. @param {Picture} picture @param {Panel} panel @returns {Line[]} */
export function linesOf({ seeds }, panel) {
  return panel.arms.flatMap((arm) => {
    const mean = { arm, seed: null, steps: arm.mean.steps, x: arm.mean.x, y: arm.mean.y, band: arm.mean };
    const lines = /** @type {Line[]} */ (arm.traces.map((trace) => ({ arm, band: null, ...trace })));
    return seeds ? lines : [mean];
  });
}

/** Return the two ends of the x axis of a row of panels, or of all: tasks differ in how long they are trained.
 * @param {Picture} picture @param {string} [row] @returns {[number, number]} */
export function xRange(picture, row) {
  if (picture.zoom.length) return [picture.zoom[0], picture.zoom[1]];
  const xs = picture.panels.filter((panel) => !row || panel.row === row).flatMap((panel) => linesOf(picture, panel).map(({ x }) => x)).filter((x) => x.length);
  const [low, high] = [Math.min(...xs.map((x) => x[0])), Math.max(...xs.map((x) => x[x.length - 1]))];
  return low < high ? [low, high] : low === high ? [low - 0.5, high + 0.5] : [0, 1];
}

/** Return the two ends of the y axis of a row of panels. @param {Picture} picture @param {string} row */
export function yRange(picture, row) {
  const lines = picture.panels.filter((panel) => panel.row === row).flatMap((panel) => linesOf(picture, panel));
  const shown = lines.flatMap(({ arm, x, y, band }) => {
    const edges = band && !arm.plain ? [band.low, band.high].map((edge) => wellFounded(edge, band)) : [];
    return [y, ...edges].map((values) => ({ x, values }));
  });
  const start = Float64Array.of(xRange(picture, row)[0]);
  if (picture.reference !== null) shown.push({ x: start, values: Float64Array.of(picture.reference) });
  return extent(shown, picture.zoom, picture.log);
}

/** Of two runs alone the interval is so wide that it would leave nothing else to see. @param {Float64Array} edge @param {Mean} band */
const wellFounded = (edge, band) => edge.map((value, i) => (band.n[i] > 2 ? value : NaN));

/** Panels of a row stand beside each other where there is room. @param {Picture} picture @param {number} width */
export function columnsOf({ panels }, width) {
  const fit = Math.floor((width + GAP) / (250 + GAP));
  const longest = Math.max(1, ...panels.map((panel) => panels.filter((other) => other.row === panel.row).length));
  return Math.max(1, Math.min(panels.length, fit, longest > 1 ? longest : panels.length === 4 ? 2 : 3));
}

/** Return what is seen as rows of a table, its head first. @param {Picture} picture @returns {(string | number)[][]} */
export function rowsOf(picture) {
  const [from, to] = xRange(picture);
  const rows = picture.panels.flatMap((panel) =>
    linesOf(picture, panel).flatMap(({ arm, seed, steps, x, y, band }) =>
      Array.from(steps, (step, i) => {
        const more = band ? [band.low[i], band.high[i], band.n[i]] : [seed ?? NaN];
        return [panel.title, arm.name, step, x[i], y[i], ...more];
      }),
    ),
  );
  const head = ["panel", "arm", "rollout_step", picture.x, picture.title, ...(picture.seeds ? ["seed"] : ["low_95", "high_95", "runs"])];
  return [head, ...rows.filter((row) => Number(row[3]) >= from && Number(row[3]) <= to)];
}
