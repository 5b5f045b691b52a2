// What the page computes from runs: means with Student's band, differences paired by seed, moving means.

import { columns, groupBy, traceFrom } from "./document.js";

/** Return the moving mean over `count` points, centred; at the ends over those that there are.
 * @param {Float64Array} values @param {number} count */
export function smooth(values, count) {
  if (count <= 1) return values;
  const half = Math.floor(count / 2);
  const result = new Float64Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const from = Math.max(0, i - half);
    const to = Math.min(values.length, i + half + 1);
    let sum = 0;
    for (let k = from; k < to; k++) sum += values[k];
    result[i] = sum / (to - from);
  }
  return result;
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

/** Return the mean over runs at each step that any of them has, with its 95% band.
 * @param {Trace[]} traces @param {number[]} t95
 * @param {boolean} [factors] whether the mean is of logarithms: of factors the geometric one @returns {Mean} */
export function average(traces, t95, factors = false) {
  const rows = traces.flatMap(({ steps, x, y }) => Array.from(steps, (step, i) => [step, x[i], factors ? Math.log(y[i]) : y[i]]));
  const points = groupBy(rows.filter((row) => Number.isFinite(row[2])), (row) => row[0]);
  const means = Array.from(points, ([step, runs]) => {
    const { mean, half } = meanAndHalf(runs.map((row) => row[2]), t95);
    const place = runs.reduce((sum, row) => sum + row[1], 0) / runs.length;
    return [step, place, ...[mean, mean - half, mean + half].map((value) => (factors ? Math.exp(value) : value)), runs.length];
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
  let [low, high] = [Infinity, -Infinity];
  for (const { x, values } of lines) {
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (!Number.isFinite(value) || (log && value <= 0) || (window.length && (x[i] < window[0] || x[i] > window[1]))) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.05, high * (high / low) ** 0.05];
  const room = low === high ? Math.abs(low) / 10 || 0.5 : (high - low) * 0.05;
  // What never falls below zero keeps zero as its floor.
  return [low >= 0 && low < room ? 0 : low - room, high + room];
}
