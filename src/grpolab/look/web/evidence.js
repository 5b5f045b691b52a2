// The evidence of a claim as a picture: each seed's paired difference, task by task.

import { ink, verdictLook } from "./colours.js";
import { canvas, words, wrap } from "./drawing.js";
import { shape } from "./elements.js";
import { axisOf, effectText, ownScale, quantityOf } from "./forest.js";
import { number } from "./numbers.js";
import { meanAndHalf } from "./statistics.js";

const BROAD = 460;
const ROW = 64;

/** Return the difference of each seed as rows, their head first. @param {Claim} claim @returns {(string | number)[][]} */
export function differencesOf(claim) {
  const head = ["task", "seed", claim.log ? `factor of ${claim.metric}` : `difference in ${claim.metric}`, "margin", "used"];
  const rows = claim.tasks.flatMap(({ name, margin, differences }) =>
    differences.map(([seed, value], i) => [name, seed, value ?? NaN, margin ?? NaN, i < claim.n ? "yes" : claim.n ? "came later" : "before the first look"]),
  );
  return [head, ...rows];
}

/** Draw each seed's difference by task, with their mean, its 95% interval and the margin. @param {Sweep} sweep @param {Claim} claim */
export function drawDots(sweep, claim) {
  const quantity = quantityOf(sweep, claim);
  const scaled = (/** @type {number | null} */ value) => (value === null ? NaN : claim.log ? Math.log(value) : value * quantity.times);
  const tasks = claim.tasks.map(({ name, start, margin, differences }) => {
    const all = differences.map(([seed, value], i) => ({ seed, value: scaled(value), early: i < claim.n }));
    const seeds = all.filter((one) => Number.isFinite(one.value));
    return { name, start, seeds, margin: scaled(margin), ...meanAndHalf(seeds.filter((one) => one.early).map((one) => one.value), sweep.t95) };
  });
  const ends = tasks.flatMap(({ seeds, margin, mean, half }) => [...seeds.map((one) => one.value), margin, -margin, mean - half, mean + half]);
  const scale = ownScale(ends.filter(Number.isFinite), claim.log, BROAD);
  const { to } = scale;
  const { colour } = verdictLook(claim.verdict);
  const height = tasks.length * ROW + 40;
  const label = `difference of each seed, ${quantity.name}`;
  const picture = shape("svg", { width: BROAD, height, viewBox: `0 0 ${BROAD} ${height}`, role: "img", "aria-label": label });
  tasks.forEach(({ name, start, seeds, margin, mean, half }, row) => {
    const y = row * ROW;
    const title = name + (start === null ? "" : `, start ${number(start)}`) + (Number.isFinite(mean) ? `: ${effectText(mean, claim.log)}` : "");
    picture.append(words(8, y + 12, title, { fill: ink("ink"), "font-size": 11.5 }));
    if (margin > 0) picture.append(shape("rect", { x: to(-margin), y: y + 18, width: to(margin) - to(-margin), height: 40, fill: ink("band") }));
    picture.append(shape("path", { d: `M${to(0)} ${y + 18}v40`, stroke: ink("soft") }));
    const lines = (half >= 0 ? `M${to(mean - half)} ${y + 48}H${to(mean + half)}` : "") + (Number.isFinite(mean) ? `M${to(mean)} ${y + 42}v12` : "");
    picture.append(shape("path", { d: lines, stroke: colour, "stroke-width": 2.2 }));
    seeds.forEach(({ seed, value, early }, i) => {
      const place = { cx: to(value), cy: y + 28 + ((i % 3) - 1) * 5, r: 3.6 };
      const title = shape("title", {}, `seed ${seed}: ${effectText(value, claim.log)}${early ? "" : claim.n ? " (came later)" : " (before the first look)"}`);
      picture.append(shape("circle", { ...place, fill: early ? colour : ink("paper"), "fill-opacity": 0.75, stroke: colour }, title));
    });
  });
  const caption = `${claim.contrast}: ${quantity.name}; bar: mean of the seeds used, 95%`;
  picture.append(axisOf(scale, height - 40), words(8, height - 8, caption, { fill: ink("soft"), "font-size": 10 }));
  return picture;
}

/** Return the evidence as a picture of its own, the sentence above it. @param {Sweep} sweep @param {Claim} claim */
export function drawEvidence(sweep, claim) {
  const lines = wrap(claim.sentence, 70);
  const dots = drawDots(sweep, claim);
  const top = 20 + 15 * lines.length;
  const svg = canvas(BROAD + 24, top + Number(dots.getAttribute("height")) + 8);
  svg.append(...lines.map((line, i) => words(12, 20 + 15 * i, line)), shape("g", { transform: `translate(12 ${top})` }, ...dots.childNodes));
  return svg;
}
