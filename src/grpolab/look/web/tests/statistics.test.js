import assert from "node:assert/strict";
import { test } from "node:test";

import { average, extent, meanAndHalf, paired, smooth } from "../statistics.js";

const T95 = [12.7062, 4.30265, 3.18245];
const trace = (seed, y, steps = y.map((_, i) => i)) => ({ seed, steps: Float64Array.from(steps), x: Float64Array.from(steps, (step) => step * 10), y: Float64Array.from(y) });
const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-4, `${a} is not ${b}`);

test("Student's interval of three numbers", () => {
  const { mean, half } = meanAndHalf([1, 2, 3], T95);
  near(mean, 2);
  near(half, 4.30265 / Math.sqrt(3));
  assert.ok(Number.isNaN(meanAndHalf([5], T95).half));
  near(meanAndHalf(Array.from({ length: 100 }, (_, i) => i % 2), T95).half, 1.96 * Math.sqrt(25 / 99 / 100)); // beyond the table
});

test("the mean at a step is of the runs that have it", () => {
  const mean = average([trace(1, [1, 3, 5]), trace(2, [3, 5])], T95);
  assert.deepEqual([...mean.y], [2, 4, 5]);
  assert.deepEqual([...mean.n], [2, 2, 1]);
  assert.deepEqual([...mean.x], [0, 10, 20]);
  near(mean.high[0], 2 + 12.7062);
  assert.ok(Number.isNaN(mean.low[2]));
});

test("the mean of factors is geometric", () => {
  near(average([trace(1, [2]), trace(2, [8])], T95, true).y[0], 4);
});

test("differences are paired by seed and step", () => {
  const baseline = [trace(2, [10, 20]), trace(1, [1, 2, 3])];
  const [one, two, ...rest] = paired([trace(1, [2, 4, 6]), trace(2, [10, 30, 50]), trace(3, [9])], baseline, false);
  assert.deepEqual([one.seed, [...one.y]], [1, [1, 2, 3]]);
  assert.deepEqual([two.seed, [...two.y]], [2, [0, 10]]);
  assert.equal(rest.length, 0); // seed 3 has no partner
  assert.deepEqual([...paired([trace(1, [2, 0, 6])], baseline, true)[0].y], [2, 2]); // no factor of zero
});

test("a moving mean is centred and shorter at the ends", () => {
  assert.deepEqual([...smooth(Float64Array.of(0, 3, 6, 9), 3)], [1.5, 3, 6, 7.5]);
  assert.deepEqual([...smooth(Float64Array.of(1, 2), 1)], [1, 2]);
});

test("an axis holds what is in the window, with a little room", () => {
  const lines = [{ x: [0, 1, 2], values: [1, 2, 100] }];
  assert.deepEqual(extent(lines, [0, 1], false), [0.95, 2.05]);
  assert.deepEqual(extent([{ x: [0, 1], values: [0, 10] }], [], false), [0, 10.5]); // zero stays the floor
  assert.deepEqual(extent([], [], false), [0, 1]);
  const [low, high] = extent([{ x: [0, 1, 2], values: [0, 1, 100] }], [], true);
  assert.ok(low > 0.5 && low < 1 && high > 100);
  const [least, most] = extent([{ x: [0], values: [3] }], [], false);
  assert.ok(least < 3 && most > 3);
});
