import assert from "node:assert/strict";
import { test } from "node:test";

import { pictureOf, rowsOf, xRange, yRange } from "../panels.js";
import { START } from "../state.js";
import { sweep } from "./example.js";

const made = sweep();
const study = made.studies[0];
const shown = (change) => pictureOf(made, study, { ...START, metric: "clip/active", ...change });

test("a panel has every arm's mean over its seeds", () => {
  const picture = shown({});
  assert.deepEqual(picture.panels.map(({ title, row }) => [title, row]), [["addition/healthy", "addition"], ["addition/stressed", "addition"]]);
  const [symmetric, higher] = picture.panels[0].arms;
  assert.deepEqual([symmetric.mean.y[0], symmetric.mean.y[9], symmetric.mean.n[0]], [2, 11, 3]);
  assert.equal(higher.mean.y[0], 18);
  assert.deepEqual([symmetric.traces.length, picture.y], [0, "clip/active, share of tokens"]);
});

test("a metric that nobody has shows the score", () => {
  assert.equal(shown({ metric: "nothing" }).title, "eval/accuracy");
});

test("the difference to the baseline is paired by seed, and a factor on a logarithmic axis", () => {
  const picture = shown({ show: "difference" });
  assert.deepEqual(picture.panels[0].arms.map(({ name, mean }) => [name, mean.y[5], mean.low[5]]), [["higher", 16, 16]]);
  assert.equal(picture.reference, 0);
  const factor = shown({ show: "difference", log: true });
  const geometric = Math.exp((Math.log(17) + Math.log(9) + Math.log(19 / 3)) / 3);
  assert.ok(Math.abs(factor.panels[0].arms[0].mean.y[0] - geometric) < 1e-3);
  assert.equal(factor.reference, 1);
  assert.equal(shown({ show: "difference", to: "higher" }).panels[0].arms[0].name, "symmetric");
  assert.equal(pictureOf(made, { ...study, paired: false }, { ...START, show: "difference" }).reference, null);
});

test("arms, facets and seeds are shown as asked", () => {
  assert.deepEqual(shown({ off: ["higher"] }).panels[0].arms.map(({ name }) => name), ["symmetric"]);
  assert.deepEqual(shown({ facet: "addition/stressed" }).panels.map(({ title }) => title), ["addition/stressed"]);
  assert.deepEqual(shown({ lines: "seeds" }).panels[0].arms[0].traces.map(({ seed }) => seed), [1, 2, 3]);
});

test("axes hold what is shown, and the window", () => {
  assert.deepEqual(xRange(shown({})), [0, 9]);
  assert.deepEqual(xRange(shown({ x: "tokens" })), [0, 576]);
  assert.deepEqual(xRange(shown({ zoom: [2, 4] })), [2, 4]);
  const [low, high] = yRange(shown({ lines: "seeds", zoom: [2, 4] }), "addition");
  assert.ok(low < 3 && high > 23 && high <= 24);
});

test("the rows that are saved are the numbers that are seen", () => {
  const [head, ...rows] = rowsOf(shown({ zoom: [2, 4] }));
  assert.deepEqual(head, ["panel", "arm", "rollout_step", "rollout steps", "clip/active", "low_95", "high_95", "runs"]);
  assert.equal(rows.length, 2 * 2 * 3);
  assert.deepEqual([...rows[0].slice(0, 5), rows[0][7]], ["addition/healthy", "symmetric", 2, 2, 4, 3]);
  assert.equal(rowsOf(shown({ lines: "seeds" })).length, 1 + 2 * 2 * 3 * 10);
});
