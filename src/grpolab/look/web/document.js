// The document of the page: its numbers decoded, and who is who in it.

/** @type {Record<string, string>} */
export const AXES = {
  rollout_step: "rollout steps", optimizer_step: "optimiser steps", completions: "completions", tokens: "tokens", seconds: "seconds",
};

/** @type {WeakMap<Curve, Map<string, Float64Array>>} */
const decoded = new WeakMap();

/** Return the numbers of a base64 text: 3 bytes each, the upper 24 bits of a float32. NaN stands for an absent one. @param {string} text */
export function unpack(text) {
  const bytes = atob(text);
  const view = new DataView(new ArrayBuffer(4));
  return Float64Array.from({ length: Math.floor(bytes.length / 3) }, (_, i) => {
    for (let k = 0; k < 3; k++) view.setUint8(k, bytes.charCodeAt(3 * i + k));
    return view.getFloat32(0);
  });
}

/** Return packed numbers, `count` of them where one number holds for all. @param {Packed | undefined} packed @param {number} count */
export function numbersOf(packed, count) {
  if (Array.isArray(packed)) return Float64Array.from(packed, (value) => value ?? NaN);
  return typeof packed === "string" ? unpack(packed) : new Float64Array(count).fill(packed ?? NaN);
}

/** Return a column of a curve, decoded when it is first asked for.
 * @param {Curve} curve @param {"x" | "y"} axis @param {string} name @returns {Float64Array} */
function columnOf(curve, axis, name) {
  const known = decoded.get(curve) ?? new Map();
  decoded.set(curve, known);
  const count = () => (name === "rollout_step" ? 0 : columnOf(curve, "x", "rollout_step").length);
  if (!known.has(axis + name)) known.set(axis + name, numbersOf(curve[axis][name], count()));
  return known.get(axis + name);
}

/** Return the columns of rows. @param {number[][]} rows @param {number} count */
export function columns(rows, count) {
  return Array.from({ length: count }, (_, column) => Float64Array.from(rows, (row) => row[column]));
}

/** Return what shares a key, in the order of first appearance. (Map.groupBy is younger than browsers in use.)
 * @template One, Key @param {One[]} all @param {(one: One) => Key} keyOf */
export function groupBy(all, keyOf) {
  const groups = /** @type {Map<Key, One[]>} */ (new Map());
  for (const one of all) groups.set(keyOf(one), groups.get(keyOf(one)) ?? []).get(keyOf(one))?.push(one);
  return groups;
}

/** Return rows of step, place and value as a trace. @param {number} seed @param {number[][]} rows @returns {Trace} */
export function traceFrom(seed, rows) {
  const [steps, x, y] = columns(rows, 3);
  return { seed, steps, x, y };
}

/** Return a run's numbers of a metric over an axis; null where it has none. Rows without a number are left out.
 * @param {Run} run @param {string} metric @param {string} x @param {number} seed
 * @param {boolean} [peaks] whether the extremes that thinning left out are put in again @returns {Trace | null} */
export function traceOf(run, metric, x, seed, peaks = false) {
  const curve = [run.train, run.eval].find((one) => one && metric in one.y);
  if (!curve || !(x in curve.x)) return null;
  const [steps, at] = ["rollout_step", x].map((name) => columnOf(curve, "x", name));
  const values = columnOf(curve, "y", metric);
  const rows = Array.from(steps, (step, i) => [step, at[i], values[i]]);
  if (peaks) {
    // On another axis a peak lies where the last step before it does that was kept.
    const before = (/** @type {number} */ step) => at[Math.max(0, steps.findLastIndex((one) => one <= step))];
    for (const [step, value] of curve.peaks?.[metric] ?? []) rows.push([step, x === "rollout_step" ? step : before(step), value]);
    rows.sort((a, b) => a[0] - b[0]);
  }
  const kept = rows.filter((row) => row.every(Number.isFinite));
  return kept.length ? traceFrom(seed, kept) : null;
}

/** Return the study of a name, else the first one that has runs. @param {Sweep} sweep @param {string} name */
export function studyOf(sweep, name) {
  return sweep.studies.find((one) => one.name === name) ?? sweep.studies.find((one) => one.cells.some((cell) => cell[0] >= 0)) ?? sweep.studies[0];
}

/** Return the runs of an arm in a facet with their seeds, in the order of the seeds.
 * @param {Sweep} sweep @param {Study} study @param {number} arm @param {number} facet */
export function runsOf(sweep, study, arm, facet) {
  return study.cells
    .filter((cell) => cell[0] >= 0 && cell[1] === arm && cell[2] === facet)
    .map((cell) => ({ run: sweep.runs[cell[0]], seed: cell[3] }))
    .sort((a, b) => a.seed - b.seed);
}

/** Return where a run stands: in this study if it is one of its cells, else in the first that has it.
 * @param {Sweep} sweep @param {string} signature @param {Study} [preferred] */
export function placeOf(sweep, signature, preferred) {
  const index = sweep.runs.findIndex((run) => run.signature === signature);
  const study = [preferred, ...sweep.studies].find((one) => one?.cells.some((cell) => cell[0] === index));
  const cell = study?.cells.find((one) => one[0] === index);
  if (!study || !cell || index < 0) return null;
  return { run: sweep.runs[index], study, arm: study.arms[cell[1]], facet: study.facets[cell[2]], cell };
}

/** @param {Sweep} sweep @param {Study} study @returns {Curve[]} */
const curvesOf = (sweep, study) => study.cells.flatMap(([index]) => [sweep.runs[index]?.train ?? [], sweep.runs[index]?.eval ?? []].flat());

/** Return the metrics that runs of a study have, in the document's order. @param {Sweep} sweep @param {Study} study */
export function metricsOf(sweep, study) {
  const present = new Set(curvesOf(sweep, study).flatMap(({ y }) => Object.keys(y)));
  return Object.keys(sweep.metrics).filter((name) => present.has(name));
}

/** Return the axes over which a metric can be shown. @param {Sweep} sweep @param {Study} study @param {string} metric */
export function axesOf(sweep, study, metric) {
  const curves = curvesOf(sweep, study).filter(({ y }) => metric in y);
  return Object.keys(AXES).filter((name) => name === "rollout_step" || curves.some(({ x }) => name in x));
}

/** Return the metric whose curve shows what a claim is about; many claims are of one number of a whole run.
 * @param {Sweep} sweep @param {Claim} claim */
export function curveOfClaim(sweep, claim) {
  return [claim.curve ?? "", claim.metric].find((name) => name in sweep.metrics) ?? studyOf(sweep, claim.study).score.metric;
}
