import assert from "node:assert/strict";
import { test } from "node:test";

import { axesOf, curveOfClaim, metricsOf, numbersOf, placeOf, runsOf, studyOf, traceOf, unpack } from "../document.js";
import { pack, sweep } from "./example.js";

test("numbers are the upper 24 bits of a float32, big-endian", () => {
  assert.deepEqual([...unpack("AAAAP4AAQAAAQEAA")], [0, 1, 2, 3]);
  const values = [1.5, -2.75, 0.1, 1e-20, 12345.678, NaN, Infinity];
  const back = unpack(pack(values));
  values.forEach((value, i) => (Number.isFinite(value) ? assert.ok(Math.abs(back[i] - value) <= Math.abs(value) * 2 ** -15) : assert.equal(back[i], value)));
  assert.equal(unpack("").length, 0);
});

test("one number holds at every step, and an absent one nowhere", () => {
  assert.deepEqual([...numbersOf(0.5, 3)], [0.5, 0.5, 0.5]);
  assert.deepEqual([...numbersOf(undefined, 2)], [NaN, NaN]);
  assert.deepEqual([...numbersOf([937, null, 65537], 3)], [937, NaN, 65537]);
  const { y } = traceOf({ train: { x: { rollout_step: pack([0, 1, 2]) }, y: { loss: 7 } } }, "loss", "rollout_step", 1);
  assert.deepEqual([...y], [7, 7, 7]);
});

test("a trace leaves out what has no number, and has its peaks when they are asked for", () => {
  const run = { train: { x: { rollout_step: pack([0, 4, 8]), tokens: pack([10, 50, 90]) }, y: { loss: pack([1, NaN, 3]) }, peaks: { loss: [[5, 9]] } } };
  const plain = traceOf(run, "loss", "rollout_step", 7);
  assert.deepEqual([plain.seed, [...plain.x], [...plain.y]], [7, [0, 8], [1, 3]]);
  const whole = traceOf(run, "loss", "tokens", 7, true);
  assert.deepEqual([[...whole.steps], [...whole.x], [...whole.y]], [[0, 5, 8], [10, 50, 90], [1, 9, 3]]);
  assert.equal(traceOf(run, "loss", "seconds", 7), null);
  assert.equal(traceOf(run, "none", "rollout_step", 7), null);
});

test("runs are found by arm and facet, and a run by its signature", () => {
  const made = sweep();
  const study = studyOf(made, "");
  assert.equal(studyOf(made, "no such study"), study);
  assert.deepEqual(runsOf(made, study, 1, 0).map(({ seed }) => seed), [1, 2, 3]);
  const place = placeOf(made, made.runs[4].signature, study);
  assert.deepEqual([place.arm.name, place.facet, place.cell[3]], ["higher", "addition/healthy", 2]);
  assert.equal(placeOf(made, "0000"), null);
});

test("metrics and axes are those that runs have", () => {
  const made = sweep();
  assert.deepEqual(metricsOf(made, made.studies[0]), ["clip/active", "eval/accuracy"]);
  assert.deepEqual(axesOf(made, made.studies[0], "clip/active"), ["rollout_step", "tokens"]);
  assert.deepEqual(axesOf(made, made.studies[0], "eval/accuracy"), ["rollout_step"]);
});

test("the curve of a claim is its own, its metric's or the score's", () => {
  const made = sweep();
  const claim = { study: "clip", metric: "final_score" };
  assert.equal(curveOfClaim(made, claim), "eval/accuracy");
  assert.equal(curveOfClaim(made, { ...claim, metric: "clip/active" }), "clip/active");
  assert.equal(curveOfClaim(made, { ...claim, metric: "clip_share", curve: "clip/active" }), "clip/active");
});
