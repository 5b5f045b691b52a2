// What the page computes from runs: means with Student's band, differences paired by seed, moving means.

import { columns, groupBy, traceFrom } from "./document.js";

/** Round a half to the even neighbour, as Python does. @param {number} value */
const roundEven = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

/** Return the moving mean of each seed over one step in `parts` before and behind, of those that any of the seeds has;
 * at the start, where a run changes most, over fewer. It is the rule of the figures (`smooth` in figures/panels.py).
 * @param {Trace[]} traces @param {number} parts 0: not smoothed @param {boolean} log whether the mean is of logarithms
 * @returns {Trace[]} */
export function smooth(traces, parts, log) {
  const all = [...new Set(traces.flatMap(({ steps }) => Array.from(steps)))].sort((a, b) => a - b);
  const place = new Map(all.map((step, i) => [step, i]));
  const half = parts ? roundEven(all.length / parts) : 0;
  return traces.map((trace) => {
    const row = new Float64Array(all.length).fill(NaN);
    trace.steps.forEach((step, i) => (row[place.get(step) ?? 0] = log ? Math.log(trace.y[i]) : trace.y[i]));
    const y = trace.steps.map((step) => {
      const at = place.get(step) ?? 0;
      const reach = Math.min(half, at);
      const near = row.subarray(at - reach, at + reach + 1).filter(Number.isFinite);
      const mean = Number.isFinite(row[at]) ? near.reduce((sum, value) => sum + value, 0) / near.length : NaN;
      return log ? Math.exp(mean) : mean;
    });
    return { ...trace, y };
  });
}

/** Return the mean of numbers and half the width of its 95% interval; NaN for the half of a single number.
 * @param {number[]} values @param {number[]} t95 Student's t by degrees of freedom, from 1 */
export function meanAndHalf(values, t95) {
  const n = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / n;
  if (n < 2) return { mean, half: NaN };
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (n - 1);
  return { mean, half: (t95[n - 2] ?? 1.96) * Math.sqrt(variance / n) };
}

/** Return the interval of a mean of shares, which stays between 0 and 1: Wilson's at the effective sample size, with
 * Student's t (`share_band` in report/statistics/intervals.py). @param {number} mean @param {number} half */
export function shareInterval(mean, half) {
  if (!(mean > 0 && mean < 1)) return [Math.max(0, mean - half), Math.min(1, mean + half)];
  const ratio = half ** 2 / (mean * (1 - mean));
  const centre = (mean + ratio / 2) / (1 + ratio);
  const wide = Math.sqrt(ratio * mean * (1 - mean) + ratio ** 2 / 4) / (1 + ratio);
  return [Math.max(0, centre - wide), Math.min(1, centre + wide)];
}

/** Return the mean over runs at each step that at least `fewest` of them have, with its 95% band.
 * @param {Trace[]} traces @param {{t95: number[], log?: boolean, share?: boolean, fewest?: number}} how
 * `log`: the geometric mean; `share`: the values lie between 0 and 1 @returns {Mean} */
export function average(traces, { t95, log = false, share = false, fewest = 1 }) {
  const rows = traces.flatMap(({ steps, x, y }) => Array.from(steps, (step, i) => [step, x[i], log ? Math.log(y[i]) : y[i]]));
  const points = Array.from(groupBy(rows.filter((row) => Number.isFinite(row[2])), (row) => row[0]).values());
  const means = points.filter((runs) => runs.length >= fewest).map((runs) => {
    const { mean, half } = meanAndHalf(runs.map((row) => row[2]), t95);
    const place = runs.reduce((sum, row) => sum + row[1], 0) / runs.length;
    const bounds = share && !log ? shareInterval(mean, half) : [mean - half, mean + half];
    return [runs[0][0], place, ...[mean, ...bounds].map((value) => (log ? Math.exp(value) : value)), runs.length];
  });
  const [steps, x, y, low, high, n] = columns(means.sort((a, b) => a[0] - b[0]), 6);
  return { steps, x, y, low, high, n };
}

/** Return each run minus the run of the same seed, at the steps that both have; divided by it, where factors are asked.
 * @param {Trace[]} traces @param {Trace[]} baseline @param {boolean} factors @returns {Trace[]} */
export function paired(traces, baseline, factors) {
  return traces.flatMap(({ seed, steps, x, y }) => {
    const other = baseline.find((trace) => trace.seed === seed);
    const theirs = new Map(Array.from(other?.steps ?? [], (step, i) => [step, other?.y[i] ?? NaN]));
    const rows = Array.from(steps, (step, i) => {
      const base = theirs.get(step) ?? NaN;
      return [step, x[i], !factors ? y[i] - base : y[i] > 0 && base > 0 ? y[i] / base : NaN];
    });
    const kept = rows.filter((row) => Number.isFinite(row[2]));
    return kept.length ? [traceFrom(seed, kept)] : [];
  });
}

/** Return the least and greatest of what lines show within a window, with a little room.
 * @param {{x: ArrayLike<number>, values: ArrayLike<number>}[]} lines @param {number[]} window empty for everything @param {boolean} log
 * @returns {[number, number]} */
export function extent(lines, window, log) {
  const [from, to] = window.length ? window : [-Infinity, Infinity];
  const least = log ? Number.MIN_VALUE : -Infinity;
  const seen = lines.flatMap(({ x, values }) => Array.from(values).filter((y, i) => Number.isFinite(y) && y >= least && x[i] >= from && x[i] <= to));
  const low = seen.reduce((one, other) => Math.min(one, other), Infinity);
  const high = seen.reduce((one, other) => Math.max(one, other), -Infinity);
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = low === high ? Math.abs(low) / 10 || 0.5 : (high - low) * 0.05;
  return [low >= 0 && low < room ? 0 : low - room, high + room]; // what never falls below zero keeps zero as its floor
}
