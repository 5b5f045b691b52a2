// What a panel says at the cursor: the value of every arm at that step, and how many runs are behind it.

import { armColour } from "./colours.js";
import { element } from "./elements.js";
import { number } from "./numbers.js";

/** @param {Panel} panel */
const longestOf = (panel) => panel.arms.map((arm) => arm.mean.x).reduce((one, other) => (other.length > one.length ? other : one));

/** Return how far from a point the cursor still means it. @param {Panel} panel */
export function spacingOf(panel) {
  const x = longestOf(panel);
  return x.length > 1 ? (0.75 * (x[x.length - 1] - x[0])) / (x.length - 1) : Infinity;
}

/** Return the point that is nearest to a place; null if none is near enough.
 * @param {ArrayLike<number>} x ascending @param {number} at @param {number} reach */
export function nearest(x, at, reach) {
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle + 1;
    else high = middle;
  }
  const found = low > 0 && at - x[low - 1] < x[low] - at ? low - 1 : low;
  return x.length && Math.abs(x[found] - at) <= reach ? found : null;
}

/** Write what the arms have at the cursor, on the side where the cursor is not.
 * @param {Plot} u @param {HTMLElement} tip @param {Picture} picture @param {Panel} panel @param {number} reach */
export function showTip(u, tip, picture, panel, reach) {
  const left = u.cursor.left ?? -1;
  const longest = longestOf(panel);
  const pointer = u.posToVal(left, "x");
  const first = nearest(longest, pointer, reach);
  tip.hidden = left < 0 || left > u.over.clientWidth || first === null;
  if (first === null || tip.hidden) return;
  const at = longest[first];
  const rows = panel.arms.flatMap(({ name, colour, mean }) => {
    const i = nearest(mean.x, at, reach);
    return i === null ? [] : [{ name, colour, y: mean.y[i], ends: [mean.low[i], mean.high[i]], n: mean.n[i] }];
  });
  const body = rows
    .sort((a, b) => b.y - a.y)
    .map(({ name, colour, y, ends, n }) => {
      const dot = element("i", { style: `background: ${armColour(colour)}` });
      const interval = Number.isFinite(ends[0]) ? `[${ends.map((end) => number(end, 2)).join(", ")}]` : "";
      const cells = [number(y, 4), interval, `n ${n}`].map((text) => element("td", {}, text));
      return element("tr", {}, element("th", {}, dot, name), ...cells);
    });
  const seed = picture.seeds && u.cursor.event ? nearestSeed(u, panel, at, reach) : "";
  const head = element("div", { class: "soft" }, `${picture.x} ${number(at, 4)}`);
  tip.replaceChildren(head, element("table", {}, ...body), element("div", {}, seed));
  tip.classList.toggle("right", left < u.over.clientWidth / 2);
}

/** Name the single line that is nearest to the pointer. @param {Plot} u @param {Panel} panel @param {number} at @param {number} reach */
function nearestSeed(u, panel, at, reach) {
  let [best, text] = [24, ""];
  for (const { name, traces } of panel.arms) {
    for (const { seed, x, y } of traces) {
      const i = nearest(x, at, reach);
      const distance = i === null ? Infinity : Math.abs(u.valToPos(y[i], "y") - (u.cursor.top ?? 0));
      if (i !== null && distance < best) [best, text] = [distance, `${name}, seed ${seed}: ${number(y[i], 4)}`];
    }
  }
  return text;
}
