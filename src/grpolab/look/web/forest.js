// The forest of verdicts: a claim's difference on a scale of margins, or of its metric's own unit.

import { ink, verdictLook } from "./colours.js";
import { studyOf } from "./document.js";
import { canvas, words, wrap } from "./drawing.js";
import { shape } from "./elements.js";
import { number, roundText, signed, ticks } from "./numbers.js";
import { meanAndHalf } from "./statistics.js";

export const WIDTH = 300;
const REACH = 12; // margins; what goes further ends in an arrow
const SCORES = ["final_score", "gain", "mean_score", "start", "drawdown"];

/** @param {Claim} claim */
export const saysOf = ({ says, where }) => says.replace(/\.$/, "") + (where ? ` (${where})` : "");

/** Return what a claim's differences are in: points of a share, factors, or the unit of the metric. @param {Sweep} sweep @param {Claim} claim */
export function quantityOf(sweep, claim) {
  const score = studyOf(sweep, claim.study).score;
  const metric = sweep.metrics[SCORES.includes(claim.metric) ? score.metric : claim.metric];
  const name = claim.metric === "final_score" ? score.name : claim.metric;
  const share = Boolean(metric?.share) && !claim.log;
  return { name: claim.log ? `factor of ${name}` : share ? `${name}, points` : name, times: share ? 100 : 1 };
}

/** Return a claim's combined difference; in own units the mean over tasks has weights of 1 / margin, as it is decided.
 * Factors are returned as logarithms. What has no margin is the plain mean over tasks, with Student's interval.
 * @param {Sweep} sweep @param {Claim} claim @param {boolean} own @returns {Effect | null} */
export function effectOf(sweep, claim, own) {
  const { effect, low, high, tasks, log } = claim;
  if (!own) return effect === null || low === null || high === null ? null : { effect, low, high, margin: 1 };
  if (!tasks.length) return null;
  const { times } = quantityOf(sweep, claim);
  if (effect === null || low === null || high === null) {
    const seeds = tasks[0].differences.slice(0, claim.n).map((_, i) => tasks.map(({ differences }) => differences[i]?.[1] ?? NaN));
    const means = seeds.map((values) => values.reduce((sum, value) => sum + (log ? Math.log(value) : value * times), 0) / tasks.length);
    const { mean, half } = meanAndHalf(means, sweep.t95);
    return Number.isFinite(half) ? { effect: mean, low: mean - half, high: mean + half, margin: 0 } : null;
  }
  const inverse = tasks.map(({ margin }) => 1 / (margin === null ? NaN : log ? Math.log(margin) : margin * times));
  const margin = tasks.length / inverse.reduce((sum, one) => sum + one, 0);
  return Number.isFinite(margin) ? { effect: effect * margin, low: low * margin, high: high * margin, margin } : null;
}

/** Return the scale of margins: linear up to two, logarithmic beyond. @returns {Scale} */
export function marginScale() {
  const away = (/** @type {number} */ size) => (size <= 2 ? size / 1.8 : 2 / 1.8 + Math.log10(size / 2));
  const half = (WIDTH / 2 - 8) / away(REACH);
  const to = (/** @type {number} */ value) => WIDTH / 2 + Math.sign(value) * half * away(Math.min(REACH, Math.abs(value)));
  return { to, ticks: [-10, -5, -2, -1, 0, 1, 2, 5, 10], text: roundText, ends: [-REACH, REACH] };
}

/** Return a scale in a unit of its own that holds these values.
 * @param {number[]} values @param {boolean} log whether they are logarithms of factors @param {number} [width] @returns {Scale} */
export function ownScale(values, log, width = WIDTH) {
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const room = (high - low || 1) * 0.06;
  const ends = /** @type {[number, number]} */ ([low - room, high + room]);
  const to = (/** @type {number} */ value) => 8 + ((value - ends[0]) / (ends[1] - ends[0])) * (width - 16);
  const places = log ? ticks(Math.exp(ends[0]), Math.exp(ends[1]), true).map(Math.log) : ticks(ends[0], ends[1], false);
  return { to, ticks: places, text: (value) => (log ? `×${number(Number(Math.exp(value).toPrecision(3)))}` : roundText(value)), ends };
}

/** Write a difference in a scale's unit. @param {number} value @param {boolean} factor */
export const effectText = (value, factor) => factor ? `×${number(Math.exp(value))}` : signed(value);

/** Draw a claim on its scale: the margin in grey, the interval, and its verdict as a mark.
 * @param {Claim} claim @param {Effect} effect @param {Scale} scale @param {number} height */
export function strip(claim, effect, scale, height) {
  const { colour } = verdictLook(claim.verdict);
  const { low, high } = effect;
  const { to, ends } = scale;
  const middle = height / 2;
  const [left, right] = [to(Math.max(low, ends[0])), to(Math.min(high, ends[1]))];
  const arrow = (/** @type {boolean} */ leaves, /** @type {number} */ at, /** @type {number} */ way) =>
    leaves && shape("path", { d: `M${at} ${middle - 4}l${6 * way} 4l${-6 * way} 4z`, fill: colour });
  return shape(
    "g",
    {},
    effect.margin > 0 && shape("rect", { x: to(-effect.margin), y: 0, width: to(effect.margin) - to(-effect.margin), height, fill: ink("band") }),
    shape("path", { d: `M${to(0)} 0V${height}`, stroke: ink("soft"), "stroke-opacity": 0.6 }),
    shape("path", { d: `M${left} ${middle}H${right}`, stroke: colour, "stroke-width": 2 }),
    arrow(low < ends[0], left, -1),
    arrow(high > ends[1], right, 1),
    mark(claim, to(Math.max(ends[0], Math.min(ends[1], effect.effect))), middle),
  );
}

/** Draw a verdict's mark; hollow where the claim is not confirmatory.
 * @param {{verdict: string, label: string}} claim @param {number} x @param {number} y */
export function mark({ verdict, label }, x, y) {
  const look = verdictLook(verdict);
  const fill = label === "exploratory" ? ink("paper") : look.colour;
  const paint = { fill, stroke: look.colour, "stroke-width": 1.6, "stroke-linejoin": "round" };
  const paths = { up: `M${x} ${y - 5}l5 9h-10z`, down: `M${x} ${y + 5}l5 -9h-10z`, square: `M${x - 4} ${y - 4}h8v8h-8z`, circle: "" };
  const d = paths[look.mark];
  return d ? shape("path", { d, ...paint }) : shape("circle", { cx: x, cy: y, r: 4.4, ...paint });
}

/** @param {Scale} scale @param {number} y */
export function axisOf(scale, y) {
  const marks = scale.ticks.flatMap((at) => [
    shape("path", { d: `M${scale.to(at)} ${y}v4`, stroke: ink("soft") }),
    words(scale.to(at), y + 15, scale.text(at), { "text-anchor": "middle", fill: ink("soft"), "font-size": 10 }),
  ]);
  return shape("g", {}, ...marks);
}

/** Return the whole forest as one picture: a row for each claim, as tall as its sentence needs. @param {Group[]} groups */
export function drawForest(groups) {
  const lines = groups.map(({ rows }) => rows.map(({ claim }) => wrap(saysOf(claim), 62)));
  const svg = canvas(1040, lines.flat().reduce((sum, one) => sum + 10 + 14 * one.length, 0) + 64 * groups.length + 20);
  let y = 14;
  groups.forEach(({ title, scale, rows }, g) => {
    svg.append(words(14, y + 14, title, { "font-weight": 600, "font-size": 13 }));
    y += 26;
    rows.forEach(({ claim, effect, text }, r) => {
      const tall = 10 + 14 * lines[g][r].length;
      const says = lines[g][r].map((line, i) => words(34, 16 + 14 * i, line));
      svg.append(shape("g", { transform: `translate(0 ${y})` }, mark(claim, 20, tall / 2), ...says));
      if (effect) svg.append(shape("g", { transform: `translate(450 ${y})` }, strip(claim, effect, scale, tall)));
      const found = effect || text.length < 64 ? text : `${wrap(text, 62)[0]} …`;
      const verdict = words(950, y + tall / 2 + 4, claim.word, { fill: verdictLook(claim.verdict).colour });
      svg.append(words(effect ? 765 : 450, y + tall / 2 + 4, found), verdict);
      y += tall;
    });
    if (rows.some(({ effect }) => effect)) svg.append(shape("g", { transform: `translate(450 ${y})` }, axisOf(scale, 0)));
    y += 38;
  });
  return svg;
}
