import assert from "node:assert/strict";
import { test } from "node:test";

import { average, extent, meanAndHalf, paired, shareInterval, smooth } from "../statistics.js";

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
  const mean = average([trace(1, [1, 3, 5]), trace(2, [3, 5])], { t95: T95 });
  assert.deepEqual([...mean.y], [2, 4, 5]);
  assert.deepEqual([...mean.n], [2, 2, 1]);
  assert.deepEqual([...mean.x], [0, 10, 20]);
  near(mean.high[0], 2 + 12.7062);
  assert.ok(Number.isNaN(mean.low[2]));
});

test("the mean of factors is geometric", () => {
  near(average([trace(1, [2]), trace(2, [8])], { t95: T95, log: true }).y[0], 4);
});

test("differences are paired by seed and step", () => {
  const baseline = [trace(2, [10, 20]), trace(1, [1, 2, 3])];
  const [one, two, ...rest] = paired([trace(1, [2, 4, 6]), trace(2, [10, 30, 50]), trace(3, [9])], baseline, false);
  assert.deepEqual([one.seed, [...one.y]], [1, [1, 2, 3]]);
  assert.deepEqual([two.seed, [...two.y]], [2, [0, 10]]);
  assert.equal(rest.length, 0); // seed 3 has no partner
  assert.deepEqual([...paired([trace(1, [2, 0, 6])], baseline, true)[0].y], [2, 2]); // no factor of zero
});

test("a moving mean is over a tenth of the steps, fewer at the start", () => {
  const values = Array.from({ length: 40 }, (_, i) => i ** 2); // a tenth: two before, two behind
  const [{ y }] = smooth([trace(1, values)], 20, false);
  assert.deepEqual([y[0], y[1], y[2], y[20], y[39]], [0, 5 / 3, 6, 402, (37 ** 2 + 38 ** 2 + 39 ** 2) / 3]);
  assert.deepEqual([...smooth([trace(1, values)], 0, false)[0].y], values);
  assert.deepEqual([...smooth([trace(1, values.slice(0, 10))], 20, false)[0].y], values.slice(0, 10)); // half a step rounds to none
  const [, short] = smooth([trace(1, values), trace(2, [1, 2], [0, 39])], 20, false); // the steps are those of all
  assert.deepEqual([...short.y], [1, 2]);
  const [log] = smooth([trace(1, [1, 0, 4, 16, ...Array(36).fill(1)])], 20, true);
  near(log.y[2], (1 * 4 * 16 * 1) ** (1 / 4)); // of what has a logarithm
  assert.ok(Number.isNaN(log.y[1]));
});

test("the interval of shares stays between 0 and 1", () => {
  const [low, high] = shareInterval(0.02, 0.05);
  near(low, 0.002427);
  near(high, 0.146175);
  assert.deepEqual([shareInterval(0, 0), shareInterval(1, 0)], [[0, 0], [1, 1]]);
  const share = average([trace(1, [0.01]), trace(2, [0.03]), trace(3, [0.02])], { t95: T95, share: true });
  assert.ok(share.low[0] > 0 && share.y[0] - share.low[0] < share.high[0] - share.y[0]);
});

test("a step of too few runs has no mean", () => {
  assert.deepEqual([...average([trace(1, [1, 2]), trace(2, [1]), trace(3, [1])], { t95: T95, fewest: 1.5 }).steps], [0]);
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
