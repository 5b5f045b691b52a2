import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHash, START, toHash } from "../state.js";

test("a state comes back from its address, whatever its names are", () => {
  const odd = { off: ["a&b=c", "x,y", "<script>", "ü \u2028 %41+"], study: "s#1", metric: "clip/active", zoom: [3, 17.5], smooth: "fifth", log: true, tab: "curves", step: 40, metrics: ["loss"], find: "a b" };
  const state = { ...structuredClone(START), ...odd };
  assert.deepEqual(fromHash(`#${toHash(state)}`), state);
  assert.deepEqual(fromHash(`#${toHash(START)}`), START);
});

test("an address says only what differs", () => {
  assert.equal(toHash(START), "tab=answer");
  assert.equal(toHash({ ...START, tab: "curves", metric: "clip/active" }), "tab=curves&metric=clip/active");
});

test("what an address says wrongly is as at the start", () => {
  const state = fromHash("#tab=nowhere&smooth=abc&zoom=9&zoom=3&lines=all&step=1.5&unknown=1&__proto__=1");
  assert.deepEqual(state, START);
  assert.deepEqual(fromHash("#%"), START);
  assert.deepEqual(fromHash("#zoom=1"), START);
});
