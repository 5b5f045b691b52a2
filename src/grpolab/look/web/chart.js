// Panels that answer to the pointer: one cursor and one zoom in all of them.

import { armColour, ink } from "./colours.js";
import { button, element } from "./elements.js";
import { roundText, ticks } from "./numbers.js";
import { columnsOf, GAP, linesOf, xRange, yRange } from "./panels.js";
import { showTip, spacingOf } from "./tip.js";

/** @type {Picture} */
const NOTHING = { title: "", panels: [], x: "", y: "", log: false, seeds: false, zoom: [], reference: null, marks: [], note: "" };

/** Make a place for panels.
 * @param {HTMLElement} root @param {(zoom: number[]) => void} onZoom @param {(title: string) => void} onTitle @returns {Charts} */
export function chartsIn(root, onZoom, onTitle) {
  let plots = /** @type {Plot[]} */ ([]);
  let [at, width] = [-1, 0];

  /** Put the cursor on another step. @param {number} by */
  function step(by) {
    const leader = plots.toSorted((a, b) => b.data[0].length - a.data[0].length)[0];
    if (!leader) return;
    const [from, to] = [leader.scales.x.min ?? 0, leader.scales.x.max ?? 0];
    const inside = Array.from(leader.data[0].keys()).filter((i) => leader.data[0][i] >= from && leader.data[0][i] <= to);
    const here = inside.indexOf(leader.cursor.idx ?? at); // from where the pointer is
    at = inside[here < 0 ? (by > 0 ? 0 : inside.length - 1) : Math.max(0, Math.min(inside.length - 1, here + by))];
    for (const plot of plots) plot.setCursor({ left: plot.valToPos(leader.data[0][at], "x"), top: 9 });
  }

  /** Zoom around the middle of what is seen. @param {number} times */
  function zoomBy(times) {
    const [low, high] = xRange({ ...charts.picture, zoom: [] });
    const [from, to] = xRange(charts.picture);
    const [middle, half] = [(from + to) / 2, ((to - from) / 2) * times];
    const zoom = [Math.max(low, middle - half), Math.min(high, middle + half)];
    onZoom(zoom[0] <= low && zoom[1] >= high ? [] : zoom.map((end) => Number(end.toPrecision(6))));
  }

  /** @type {Charts} */
  const charts = {
    picture: NOTHING,
    draw(picture) {
      charts.picture = picture;
      plots.forEach((plot) => plot.destroy());
      [at, width] = [-1, root.clientWidth];
      const columns = columnsOf(picture, width);
      const wide = Math.floor((width - GAP * (columns - 1)) / columns);
      // All rows on one screen where they fit, and never flatter than a curve can be read.
      const room = (innerHeight - 300) / Math.ceil(picture.panels.length / columns) - 32;
      const tall = Math.round(Math.min(Math.max(180, wide * 0.7), 420, Math.max(180, room)));
      const holders = picture.panels.map(({ title, arms }) => {
        const empty = !arms.length && element("p", { class: "empty" }, "nothing to show here");
        return element("section", { class: "panel" }, element("h3", {}, button(title, () => onTitle(title))), empty);
      });
      root.style.setProperty("--columns", String(columns));
      root.replaceChildren(...holders);
      plots = picture.panels.flatMap((panel, i) => {
        if (!panel.arms.length) return [];
        const { options, data } = plotOf(picture, panel, { width: wide, height: tall }, onZoom);
        const plot = new uPlot(options, data, holders[i]);
        plot.root.setAttribute("aria-hidden", "true"); // its table is there for those who do not see it
        return [plot];
      });
    },
    key(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const times = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (way) step(way * (event.shiftKey ? 10 : 1));
      else if (times) zoomBy(times);
      else if (event.key === "0") onZoom([]);
      else return false;
      return true;
    },
    close() {
      plots.forEach((plot) => plot.destroy());
      observer.disconnect();
    },
  };
  const observer = new ResizeObserver(() => {
    if (root.clientWidth && Math.abs(root.clientWidth - width) > 1) charts.draw(charts.picture);
  });
  observer.observe(root);
  return charts;
}

/** Return what the chart library needs to draw a panel: its lines over the union of their places.
 * @param {Picture} picture @param {Panel} panel @param {{width: number, height: number}} size
 * @param {(zoom: number[]) => void} onZoom */
function plotOf(picture, panel, size, onZoom) {
  const lines = linesOf(picture, panel);
  const xs = Float64Array.from(new Set(lines.flatMap(({ x }) => Array.from(x)))).sort();
  const place = new Map(Array.from(xs, (x, i) => [x, i]));
  const [x0, x1] = xRange(picture, panel.row);
  const [y0, y1] = yRange(picture, panel.row);
  const series = /** @type {PlotOptions["series"]} */ ([{}]);
  const bands = /** @type {NonNullable<PlotOptions["bands"]>} */ ([]);
  const columns = /** @type {(number | null)[][]} */ ([]);
  /** @param {ArrayLike<number>} x @param {ArrayLike<number>} values @param {PlotOptions["series"][number]} look */
  const add = (x, values, look) => {
    const column = /** @type {(number | null)[]} */ (new Array(xs.length).fill(null));
    for (let i = 0; i < x.length; i++) {
      const shown = Number.isFinite(values[i]) && (!picture.log || values[i] > 0);
      if (shown) column[/** @type {number} */ (place.get(x[i]))] = values[i];
    }
    columns.push(column);
    series.push({ spanGaps: true, points: { show: false }, ...look });
  };
  for (const { arm, x, y, band } of lines) {
    const stroke = armColour(arm.colour);
    if (band && !arm.plain) {
      for (const edge of [band.high, band.low]) add(band.x, edge, { stroke: "transparent", width: 0 });
      bands.push({ series: [series.length - 2, series.length - 1], fill: stroke + (panel.arms.length > 4 ? "18" : "24") });
    }
    const look = band ? { width: 1.8, dash: arm.dash } : { width: 1.1, alpha: 0.7 };
    add(x, y, { stroke, ...look, points: { show: x.length < 3, size: 5 } });
  }
  const values = (/** @type {Plot} */ _, /** @type {number[]} */ splits) => splits.map(roundText);
  const grid = { stroke: ink("grid"), width: 1 };
  const axis = { stroke: ink("soft"), font: "11px system-ui, sans-serif", grid, ticks: { show: false }, gap: 5, values };
  const [across, up] = [ticks(x0, x1, false, size.width / 80), ticks(y0, y1, picture.log, size.height / 40)];
  const spacing = spacingOf(panel);
  const tip = element("div", { class: "tip", hidden: true });
  const all = () => () => (onZoom([]), null);
  /** @type {PlotOptions} */
  const options = {
    ...size,
    padding: [6, 8, 0, 0],
    legend: { show: false },
    series,
    bands,
    scales: { x: { time: false, range: () => [x0, x1] }, y: { distr: picture.log ? 3 : 1, range: () => [y0, y1] } },
    axes: [{ ...axis, size: 24, splits: () => across }, { ...axis, size: 54, splits: () => up, filter: () => up }],
    cursor: {
      y: false,
      dataIdx: (u, _, i, x) => (Math.abs(u.data[0][i] - x) <= spacing ? i : null),
      points: { size: (_, i) => (series[i].width ? 7 : 0), width: 0, fill: (_, i) => String(series[i].stroke) },
      drag: { x: true, y: false, setScale: false },
      // Moving is shared; a zoom goes through the state, which draws every panel anew.
      sync: { key: "look", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      bind: { dblclick: all },
    },
    hooks: {
      ready: [(u) => u.over.append(tip)],
      setCursor: [(u) => showTip(u, tip, picture, panel, spacing)],
      setSelect: [
        ({ select: { left, width }, posToVal }) => {
          const ends = [left, left + width].map((at) => Number(posToVal(at, "x").toPrecision(6)));
          // Not at once: the library still has to let go of the mouse, and a zoom draws its plot anew.
          if (width > 4) queueMicrotask(() => onZoom(ends));
        },
      ],
      drawAxes: [(u) => drawLines(u, picture)],
    },
  };
  return { options, data: /** @type {any} */ ([xs, ...columns]) };
}

/** Draw the line of no difference, and the steps at which something happened. @param {Plot} u @param {Picture} picture */
function drawLines(u, { reference, marks }) {
  u.ctx.fillStyle = ink("soft");
  const { left, top, width, height } = u.bbox;
  if (reference !== null) u.ctx.fillRect(left, Math.round(u.valToPos(reference, "y", true)), width, devicePixelRatio);
  for (const step of marks) u.ctx.fillRect(Math.round(u.valToPos(step, "x", true)), top, devicePixelRatio, height);
}
