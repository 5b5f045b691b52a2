// The page: tabs, what is seen in the address, keys, saving, and its age while it is written anew.

import { answerView } from "./answer.js";
import { curvesView } from "./curves.js";
import { button, element, isTyping, switcher } from "./elements.js";
import { duration } from "./numbers.js";
import { runsView } from "./runs.js";
import { save } from "./save.js";
import { fromHash, TABS, toHash } from "./state.js";
import { tokensView } from "./tokens.js";

/** @type {Record<string, (root: HTMLElement, app: App) => View>} */
const VIEWS = { answer: answerView, curves: curvesView, runs: runsView, tokens: tokensView };
const HELP = {
  "1 ... 5": "Answer, Curves, Runs, Tokens, Report",
  "/": "search: a metric, or the filter of the runs",
  "← →": "Curves: step through time (Shift: ten at once). Tokens: another step",
  "↑ ↓": "Answer: another claim; Enter opens it. Tokens: another prompt",
  "+ − 0": "Curves: zoom in, zoom out, everything",
  "r c a e g": "Tokens: colour by ratio, clip side, advantage, entropy, sampler gap",
  t: "the table behind what is seen",
  Escape: "close what is open",
  "mouse on a panel": "drag: zoom; double click: everything; click on its title: this one alone",
  "mouse on a legend": "click: on or off; double click (keyboard: Shift and Enter): this one alone",
  difference: "each seed minus the baseline's run of the same seed, then the mean; a factor where y is logarithmic",
};

/** @param {HTMLElement} root @param {Sweep} sweep */
function start(root, sweep) {
  const report = /** @type {HTMLElement} */ (document.getElementById("text"));
  const loaded = Date.now();
  const app = /** @type {App} */ ({ sweep, state: fromHash(""), go });
  let [view, shown] = [/** @type {View | null} */ (null), ""];

  const tabs = switcher("parts of the page", TABS.map((name) => [name, name[0].toUpperCase() + name.slice(1)]), (tab) => go({ tab }, true));
  const age = element("span", { class: "age", role: "status", title: sweep.written });
  const said = element("span", { class: "said", role: "status" });
  const copy = () => navigator.clipboard.writeText(location.href).then(() => say("copied"), () => say("the address bar has the link"));
  const files = /** @type {const} */ (["png", "svg", "csv"]).map((kind) => {
    const keep = () => view && save(view.seen(), kind).catch((error) => say(String(error)));
    return button(kind.toUpperCase(), keep, { title: `save what is seen as ${kind.toUpperCase()}` });
  });
  const table = button("table", () => go({ table: !app.state.table }), { title: "the table behind what is seen (t)" });
  const keys = Object.entries(HELP).flatMap(([keys, does]) => [element("dt", {}, keys), element("dd", {}, does)]);
  const help = element("dialog", { class: "help" }, element("h2", {}, "Keys and mouse"), element("dl", {}, ...keys));
  help.append(button("close", () => help.close()));
  const place = element("div", { id: "view" });
  const actions = [said, button("copy link", copy), ...files, table, button("?", () => help.showModal(), { title: "keys and mouse" })];
  root.append(
    element("header", { class: "top" }, element("h1", {}, sweep.name), element("p", { class: "question" }, sweep.question), age),
    element("div", { class: "bar", role: "navigation" }, tabs.node, element("div", { class: "actions" }, ...actions)),
    place,
    help,
  );
  root.hidden = false;
  document.documentElement.classList.add("looking");

  function say(/** @type {string} */ text) {
    said.textContent = text;
    setTimeout(() => (said.textContent = ""), 2500);
  }

  /** Change what is seen; `opens`: the browser's Back returns from it. @param {Partial<State>} change @param {boolean} [opens] */
  function go(change, opens = false) {
    app.state = { ...app.state, ...change };
    const hash = `#${toHash(app.state)}`;
    if (hash !== location.hash) history[opens ? "pushState" : "replaceState"](null, "", hash);
    show();
  }

  function show() {
    const { state } = app;
    tabs.set(state.tab);
    document.title = `${sweep.name}: ${state.tab}`;
    report.hidden = state.tab !== "report";
    table.setAttribute("aria-pressed", String(state.table));
    if (state.tab !== shown) {
      view?.close?.();
      place.replaceChildren();
      shown = state.tab;
      view = sweep.studies.length ? (VIEWS[shown]?.(place, app) ?? null) : null;
      if (!view && shown !== "report") place.append("There are no runs yet.");
    }
    place.className = state.table ? `${shown} tables` : shown;
    view?.update(state);
    const seen = view?.seen();
    files.forEach((one, i) => (one.disabled = !seen || (i < 2 && !seen.picture)));
  }

  /** Follow the address: it is a state, or a heading of the report. */
  function read() {
    const named = Array.from(report.querySelectorAll("[id]"));
    const heading = named.find((one) => one.id && new URL(`#${one.id}`, location.href).hash === location.hash);
    app.state = heading ? { ...app.state, tab: "report" } : fromHash(location.hash || (sweep.claims.length ? "" : "tab=curves"));
    show();
    heading?.scrollIntoView();
  }

  function key(/** @type {KeyboardEvent} */ event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || help.open) return;
    const tab = TABS[Number(event.key) - 1];
    if (tab) go({ tab }, true);
    else if (event.key === "?") help.showModal();
    else if (event.key === "t") go({ table: !app.state.table });
    else if (event.key === "/") {
      if (!view?.find) go({ tab: "curves" }, true);
      view?.find?.();
    } else if (!view?.key?.(event)) return;
    event.preventDefault();
  }

  /** Say how old the page is; where it is written anew, load it again in time, but not under a hand. */
  function grow() {
    const { progress, live_s: every } = sweep;
    const written = Date.parse(sweep.written);
    const parts = [`written ${duration(Math.max(0, Math.floor((Date.now() - written) / 1000)))} ago`];
    if (every) parts.push(`anew every ${duration(every)}`);
    if (progress) parts.push(`${progress.done} of ${progress.of} runs`, progress.says);
    age.textContent = parts.filter(Boolean).join("; ");
    // Not more often than it is written, also where nobody writes it any more.
    const due = every && Date.now() - Math.max(written, loaded) > every * 1000 + 1500;
    const busy = document.activeElement?.matches("input, textarea") || document.querySelector("#look :active");
    if (!due || document.hidden || busy || help.open) return;
    sessionStorage.setItem("look-scroll", String(scrollY));
    location.reload();
  }

  addEventListener("hashchange", read);
  addEventListener("keydown", key);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  read();
  grow();
  setInterval(grow, 2000);
  const scroll = sessionStorage.getItem("look-scroll");
  if (scroll) requestAnimationFrame(() => scrollTo(0, Number(scroll)));
  sessionStorage.removeItem("look-scroll");
}

const data = document.getElementById("data")?.textContent;
if (data) start(/** @type {HTMLElement} */ (document.getElementById("look")), JSON.parse(data));
