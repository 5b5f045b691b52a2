// The tab of runs: a table that sorts and filters, and behind each row the run itself.

import { armColour, isDark } from "./colours.js";
import { button, choice, element, soft } from "./elements.js";
import { duration, number } from "./numbers.js";
import { runDetail } from "./run.js";

const MOST = 300; // rows at first
const HEAD = ["study", "arm", "facet", "seed", "outcome", "start", "best", "final", "steps", "seconds", "findings"];
const NUMBERS = ["seed", "start", "best", "final", "steps", "seconds"];

/** @typedef {{run: Run | null, arm: Arm, cells: (string | number)[], text: string}} Row */

/** @param {HTMLElement} root @param {App} app @returns {View} */
export function runsView(root, app) {
  const { sweep, go } = app;
  const studies = choice("study", [["", "all studies"], ...sweep.studies.map(({ name }) => name)], (study) => go({ study }));
  const placeholder = "arm, task, outcome, cause, signature";
  const find = element("input", { type: "search", spellcheck: "false", placeholder, oninput: () => go({ find: find.value }) });
  const count = soft("");
  const [detail, body] = [element("div"), element("tbody")];
  // A column goes up, then down, then back to the order of the study.
  const sort = (/** @type {string} */ name) => ({ [name]: `-${name}`, [`-${name}`]: "" })[app.state.sort] ?? name;
  const heads = HEAD.map((name) => element("th", { class: NUMBERS.includes(name) && "number" }, button(name, () => go({ sort: sort(name) }))));
  const more = button("", () => show(rows.length));
  const filter = element("label", { class: "control" }, element("span", {}, "filter"), find);
  root.append(
    element("div", { class: "controls" }, sweep.studies.length > 1 && studies.node, filter, count),
    detail,
    element("div", { class: "wide runs" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)),
    more,
  );
  let rows = /** @type {Row[]} */ ([]);
  let [listed, opened] = ["", ""];
  let open = /** @type {View | null} */ (null);

  function show(/** @type {number} */ most) {
    body.replaceChildren(...rows.slice(0, most).map((row) => tableRow(app, row)));
    more.hidden = rows.length <= most;
    more.textContent = `show all ${rows.length}`;
  }

  return {
    update(state) {
      studies.set(sweep.studies.some(({ name }) => name === state.study) ? state.study : "");
      if (document.activeElement !== find) find.value = state.find;
      const order = (/** @type {string} */ name) => ({ [name]: "ascending", [`-${name}`]: "descending" })[state.sort] ?? "none";
      heads.forEach((head, i) => head.setAttribute("aria-sort", order(HEAD[i])));
      const asked = JSON.stringify([state.study, state.find, state.sort, state.run, isDark()]);
      if (asked !== listed) {
        listed = asked;
        rows = rowsOfRuns(sweep, state);
        count.textContent = `${rows.length} ${rows.length === 1 ? "cell" : "cells"}`;
        show(MOST);
      }
      if (!open || opened !== state.run) {
        open?.close?.();
        detail.replaceChildren();
        opened = state.run;
        open = runDetail(detail, app);
        detail.firstElementChild?.scrollIntoView({ block: "nearest" });
      }
      open?.update(state);
    },
    seen: () => open?.seen() ?? { name: `${sweep.name} runs`, picture: null, rows: () => [HEAD, ...rows.map((row) => row.cells)] },
    find: () => find.focus(),
    key(event) {
      if (event.key !== "Escape" || !app.state.run) return open?.key?.(event) ?? false;
      go({ run: "" });
      return true;
    },
    close: () => open?.close?.(),
  };
}

/** Return the rows that a filter leaves, in the order that is asked for. @param {Sweep} sweep @param {State} state @returns {Row[]} */
export function rowsOfRuns(sweep, state) {
  const asked = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  const one = sweep.studies.filter(({ name }) => name === state.study);
  const rows = (one.length ? one : sweep.studies).flatMap((study) =>
    study.cells.map(([index, a, f, seed]) => {
      const [run, arm] = [sweep.runs[index] ?? null, study.arms[a]];
      const [start, best, final] = run?.score ?? [];
      const outcome = !run ? "missing" : run.outcome + (run.lost && run.lost !== run.outcome ? `, ${run.lost}` : "");
      const causes = run?.findings.map((finding) => finding.cause).join(", ") ?? "";
      const numbers = [start, best, final, run?.steps, run?.seconds].map((value) => value ?? NaN);
      const cells = [study.name, arm.name, study.facets[f], seed, outcome, ...numbers, causes];
      return { run, arm, cells, text: `${cells.join(" ")} ${run?.signature ?? ""} ${run?.reason ?? ""}`.toLowerCase() };
    }),
  );
  const kept = rows.filter(({ text }) => asked.every((word) => text.includes(word)));
  const column = HEAD.indexOf(state.sort.replace(/^-/, ""));
  const way = state.sort.startsWith("-") ? -1 : 1;
  return column < 0 ? kept : kept.sort((a, b) => compare(a.cells[column], b.cells[column], way));
}

/** Compare two cells; absent numbers are last either way. @param {string | number} a @param {string | number} b @param {number} way */
function compare(a, b, way) {
  if (typeof a === "string" || typeof b === "string") return way * String(a).localeCompare(String(b), "en", { numeric: true });
  return Number.isNaN(a) || Number.isNaN(b) ? Number(Number.isNaN(a)) - Number(Number.isNaN(b)) : way * (a - b);
}

/** @param {App} app @param {Row} row */
function tableRow({ state, go }, { run, arm, cells }) {
  const open = state.run !== "" && state.run === run?.signature;
  const onclick = () => go({ run: open || !run ? "" : run.signature }, true);
  const made = cells.map((value, i) => {
    const text = typeof value === "string" ? value : HEAD[i] === "seconds" ? duration(value) : HEAD[i] === "seed" ? String(value) : number(value);
    const warn = HEAD[i] === "outcome" && value !== "completed" && "warn";
    if (HEAD[i] === "arm") return element("th", { scope: "row" }, run ? element("button", { type: "button" }, text) : text);
    return element("td", { class: typeof value === "number" ? "number" : warn }, text);
  });
  made[1].prepend(element("i", { class: "dot", style: `background: ${armColour(arm.colour)}` }));
  return element("tr", { class: open ? "run-open" : run && "run-shut", onclick: run && onclick }, ...made);
}
