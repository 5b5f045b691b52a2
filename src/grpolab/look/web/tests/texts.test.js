import assert from "node:assert/strict";
import { test } from "node:test";

import { lightened } from "../colours.js";
import { wrap } from "../drawing.js";
import { safeAddress } from "../elements.js";
import { effectOf, marginScale, ownScale } from "../forest.js";
import { search } from "../metric_search.js";
import { duration, number, probability, roundText, signed, ticks } from "../numbers.js";
import { rowsOfRuns } from "../runs.js";
import { toCsv } from "../save.js";
import { START } from "../state.js";
import { nearest } from "../tip.js";
import { strengthOf, tokensOf } from "../tokens.js";
import { pack, sweep } from "./example.js";

test("numbers have three digits that count", () => {
  assert.deepEqual([0, 1, 0.12345, 12.345, 1234.5, -0.5, 0.00045, 2e9, NaN, null].map((value) => number(value)), ["0", "1", "0.123", "12.3", "1,235", "−0.500", "4.5e−4", "2e9", "–", "–"]);
  assert.deepEqual([signed(0.5), signed(-2), signed(0)], ["+0.500", "−2", "0"]);
  assert.deepEqual([0.5, -0.25, 20000, 0.0001].map(roundText), ["0.5", "−0.25", "20,000", "1e−4"]);
  assert.deepEqual([0.0001, 0.045, 1, null].map(probability), ["< .001", ".045", "1.000", "–"]);
  assert.deepEqual([11.4, 600, 7200, 400000].map(duration), ["11 s", "10 min", "2.0 h", "5 days"]);
});

test("ticks are round and inside", () => {
  assert.deepEqual(ticks(0, 80, false), [0, 20, 40, 60, 80]);
  assert.deepEqual(ticks(-0.013, 0.02, false), [-0.01, -0.005, 0, 0.005, 0.01, 0.015, 0.02]);
  assert.deepEqual(ticks(0.001, 10, true), [0.001, 0.01, 0.1, 1, 10]);
  assert.ok(ticks(2, 2.4, true).length >= 2);
});

test("CSV keeps every text and number", () => {
  assert.equal(toCsv([["a", "b"], ['say "x", then', 0.1], ["\n", NaN], [" x", 12345.678]]), 'a,b\r\n"say ""x"", then",0.1\r\n"\n",\r\n" x",12345.68\r\n');
});

test("a search needs every word, in name, meaning or unit", () => {
  const { metrics } = sweep();
  const names = Object.keys(metrics);
  assert.deepEqual(search(metrics, names, "clip tokens"), ["clip/active", "unused"]);
  assert.deepEqual(search(metrics, names, "RIGHT"), ["eval/accuracy"]);
  assert.equal(search(metrics, names, "").length, 3);
  assert.equal(search(metrics, names, "zebra").length, 0);
});

test("runs are filtered by words and sorted by a column", () => {
  const made = sweep();
  const rows = (change) => rowsOfRuns(made, { ...START, ...change });
  assert.equal(rows({}).length, 13);
  assert.deepEqual(rows({ find: "missing" }).map(({ run, cells }) => [run, cells[3]]), [[null, 4]]);
  assert.equal(rows({ find: "higher small_step" }).length, 2);
  assert.equal(rows({ sort: "-final" })[0].cells[7], 0.5);
  assert.equal(rows({ sort: "final" }).at(-1).run, null); // absent numbers come last either way
  assert.equal(rows({ sort: "-final" }).at(-1).run, null);
});

test("effects in margins become effects in the metric's own unit", () => {
  const made = sweep();
  const task = (margin, differences) => ({ name: "addition", margin, start: null, differences });
  const claim = { study: "clip", metric: "final_score", effect: 2, low: 1, high: 3, log: false, n: 2, tasks: [task(0.01, []), task(0.03, [])] };
  assert.deepEqual(effectOf(made, claim, false), { effect: 2, low: 1, high: 3, margin: 1 });
  const own = effectOf(made, claim, true); // points; the mean margin has weights of 1 / margin
  assert.ok(Math.abs(own.margin - 1.5) < 1e-9 && Math.abs(own.effect - 3) < 1e-9);
  const factor = effectOf(made, { ...claim, log: true, tasks: [task(2, [])] }, true);
  assert.ok(Math.abs(Math.exp(factor.effect) - 4) < 1e-9);
  const described = { ...claim, effect: null, low: null, high: null, tasks: [task(null, [[1, 0.01], [2, 0.03], [3, 9]])] };
  assert.equal(effectOf(made, described, false), null);
  assert.ok(Math.abs(effectOf(made, described, true).effect - 2) < 1e-9); // the seeds that were used, in points
  assert.equal(effectOf(made, { ...described, tasks: [] }, true), null);
});

test("scales keep zero in place and order", () => {
  const { to } = marginScale();
  assert.equal(to(0), 150);
  assert.ok(to(-12) < to(-5) && to(-1) < to(0) && to(2) < to(5) && to(99) === to(12));
  const own = ownScale([-4, 2], false);
  assert.ok(own.to(-4) > 0 && own.to(2) < 300 && own.ticks.includes(0));
});

test("the nearest point is found where one is near enough", () => {
  assert.deepEqual([nearest([0, 5, 10], 6, 3), nearest([0, 5, 10], 20, 3), nearest([], 1, 9), nearest([3], 3.5, 1)], [1, null, null, 0]);
});

test("tokens carry their numbers, and the strength of their colour", () => {
  const tokens = tokensOf({ text: "67", reward: 1, parts: {}, advantage: 0.5, tokens: ["6", "7"], ratio: pack([1, 2]), log_prob: pack([-1, -2]), clip: ".^" });
  assert.deepEqual([tokens[1].ratio, tokens[1].clip, tokens[1].advantage, tokens[1].entropy], [2, "^", 0.5, NaN]);
  assert.deepEqual([strengthOf(tokens[0], "ratio", 1), strengthOf(tokens[1], "ratio", Math.log(2)), strengthOf(tokens[1], "clip", 1)], [0, 1, 1]);
  assert.ok(Number.isNaN(strengthOf(tokens[0], "gap", 1)));
});

test("only addresses of the web and beside the page are links", () => {
  assert.deepEqual(["../../runs/ab12", "http://127.0.0.1:5000/#/x", "javascript:alert(1)", "../x\u0000javascript:", "//evil", ""].map(safeAddress), ["../../runs/ab12", "http://127.0.0.1:5000/#/x", null, null, null, null]);
});

test("colours stand out in the dark, and black becomes light", () => {
  assert.equal(lightened("#e69f00"), "#e69f00");
  assert.ok(parseInt(lightened("#000000").slice(1, 3), 16) > 180);
  assert.match(lightened("no colour"), /^#/);
});

test("long texts break into lines", () => {
  assert.deepEqual(wrap("one two three", 8), ["one two", "three"]);
  assert.deepEqual(wrap("abcdefghijkl", 5), ["abcde", "fghij", "kl"]);
  assert.deepEqual(wrap("", 5), [""]);
});
