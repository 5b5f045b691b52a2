// Pictures to be saved: the panels of Curves as SVG, drawn from the same numbers as the chart.

import { armColour, ink } from "./colours.js";
import { shape } from "./elements.js";
import { roundText, ticks } from "./numbers.js";
import { columnsOf, linesOf, rowsOf, xRange, yRange } from "./panels.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const WIDE = 420;
const TALL = 230;
const LEFT = 58;
const TOP = 26;

/** Return an empty picture on the page's ground. @param {number} width @param {number} height */
export function canvas(width, height) {
  const look = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": 11 };
  return shape("svg", { ...look, fill: ink("ink") }, shape("rect", { width, height, fill: ink("paper") }));
}

/** @param {number} x @param {number} y @param {string} text @param {Record<string, string | number>} [look] */
export function words(x, y, text, look = {}) {
  // XML has no place for these: with them the file would be none.
  // eslint-disable-next-line no-control-regex
  return shape("text", { x, y, ...look }, text.toWellFormed().replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd"));
}

/** Break a text into lines of about so many characters. @param {string} text @param {number} width */
export const wrap = (text, width) => text.match(new RegExp(`\\S.{0,${width - 2}}(?!\\S)|\\S{${width}}`, "g")) ?? [""];

/** Return panels as one SVG picture with title, legend and axes. @param {Picture} picture */
function drawPicture(picture) {
  const arms = [...new Map(picture.panels.flatMap((panel) => panel.arms.map((arm) => [arm.name, arm]))).values()];
  const columns = columnsOf(picture, 1300);
  const width = columns * WIDE;
  const perRow = Math.floor((width - 20) / 190);
  const head = 34 + 18 * Math.ceil(arms.length / perRow);
  const height = head + Math.ceil(picture.panels.length / columns) * (TALL + 24) + 42;
  const svg = canvas(width, height);
  svg.append(words(12, 20, picture.title, { "font-size": 13, "font-weight": 600 }));
  arms.forEach((arm, i) => {
    const [x, y] = [12 + (i % perRow) * 190, 38 + 18 * Math.floor(i / perRow)];
    svg.append(shape("path", { d: `M${x} ${y}h24`, ...strokeOf(arm) }), words(x + 30, y + 4, arm.name.slice(0, 26)));
  });
  picture.panels.forEach((panel, i) => {
    const transform = `translate(${(i % columns) * WIDE} ${head + Math.floor(i / columns) * (TALL + 24)})`;
    svg.append(shape("g", { transform }, ...drawPanel(picture, panel, `panel-${i}`)));
  });
  const axes = `x: ${picture.x}; y: ${picture.y}${picture.log ? ", logarithmic" : ""}`;
  svg.append(words(12, height - 24, axes, { fill: ink("soft") }), words(12, height - 9, picture.note, { fill: ink("soft"), "font-size": 10 }));
  return svg;
}

/** Return what can be saved of panels. @param {Picture} picture @param {string} name @returns {Seen} */
export const seenIn = (picture, name) => ({ name, picture: () => drawPicture(picture), rows: () => rowsOf(picture) });

function strokeOf(/** @type {ArmLines} */ arm) {
  const dash = arm.dash.length ? arm.dash.join(" ") : null;
  return { fill: "none", stroke: armColour(arm.colour), "stroke-width": 1.6, "stroke-dasharray": dash, "stroke-linejoin": "round" };
}

/** @param {Picture} picture @param {Panel} panel @param {string} id */
function drawPanel(picture, panel, id) {
  const [x0, x1] = xRange(picture, panel.row);
  const [y0, y1] = yRange(picture, panel.row);
  const [right, bottom] = [WIDE - 12, TALL - 8];
  const scale = picture.log ? Math.log : Number;
  const toX = (/** @type {number} */ x) => LEFT + ((x - x0) / (x1 - x0)) * (right - LEFT);
  const toY = (/** @type {number} */ y) => bottom - ((scale(y) - scale(y0)) / (scale(y1) - scale(y0))) * (bottom - TOP);
  /** @param {Float64Array} x @param {Float64Array} y */
  const points = (x, y) => Array.from(y, (value, i) => (Number.isFinite(value) ? [`${toX(x[i]).toFixed(2)} ${toY(value).toFixed(2)}`] : [])).flat();
  const axes = shape("g", { fill: ink("soft"), "font-size": 10, stroke: "none" });
  /** @param {string} d @param {string} [colour] */
  const line = (d, colour = ink("grid")) => axes.append(shape("path", { d, stroke: colour }));
  for (const at of ticks(y0, y1, picture.log)) {
    line(`M${LEFT} ${toY(at)}H${right}`);
    axes.append(words(LEFT - 6, toY(at) + 3.5, roundText(at), { "text-anchor": "end" }));
  }
  for (const at of ticks(x0, x1, false)) {
    line(`M${toX(at)} ${TOP}V${bottom}`);
    axes.append(words(toX(at), bottom + 14, roundText(at), { "text-anchor": "middle" }));
  }
  if (picture.reference !== null) line(`M${LEFT} ${toY(picture.reference)}H${right}`, ink("soft"));
  for (const step of picture.marks) line(`M${toX(step)} ${TOP}V${bottom}`, ink("soft"));
  const lines = shape("g", { "clip-path": `url(#${id})` });
  for (const { arm, x, y, band } of linesOf(picture, panel)) {
    const edge = band && !arm.plain ? [...points(x, band.high), ...points(x, band.low).reverse()] : [];
    if (edge.length) lines.append(shape("path", { d: `M${edge.join("L")}Z`, fill: armColour(arm.colour), "fill-opacity": 0.14 }));
    lines.append(shape("path", { d: `M${points(x, y).join("L")}`, ...strokeOf(arm), "stroke-opacity": band ? 1 : 0.6 }));
  }
  const box = shape("clipPath", { id }, shape("rect", { x: LEFT, y: TOP, width: right - LEFT, height: bottom - TOP }));
  const empty = !panel.arms.length && words(LEFT + 20, TOP + 60, "nothing to show here", { fill: ink("soft") });
  return [box, words(LEFT, TOP - 8, panel.title, { "font-weight": 600 }), axes, lines, ...(empty ? [empty] : [])];
}
