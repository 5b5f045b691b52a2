// The search box of metrics: every word that is typed must stand in a metric's name, meaning or unit.

import { element, soft } from "./elements.js";

/** Return the metrics that a text finds: the one of that very name, then those whose name has its first word.
 * @param {Record<string, Metric>} metrics @param {string[]} names @param {string} text */
export function search(metrics, names, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = names.filter((name) => {
    const all = `${name} ${metrics[name].meaning} ${metrics[name].unit} ${metrics[name].kind}`.toLowerCase();
    return words.every((word) => all.includes(word));
  });
  const rank = (/** @type {string} */ name) => (name.toLowerCase() === words[0] ? -1 : Number(!name.toLowerCase().includes(words[0] ?? "")));
  return found.sort((a, b) => rank(a) - rank(b));
}

/** @param {{unit: string}} metric */
export const unitOf = ({ unit }) => element("span", { class: "unit" }, unit === "1" ? "" : unit);

/** @param {string} label @param {Record<string, Metric>} metrics @param {() => string[]} names @param {(name: string) => void} pick */
export function metricSearch(label, metrics, names, pick) {
  const id = "metrics";
  let [shown, at, chosen] = [/** @type {string[]} */ ([]), 0, ""];
  const list = element("ul", { id, role: "listbox", "aria-label": label, hidden: true });
  const look = { type: "search", role: "combobox", "aria-controls": id, "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false" };
  const box = element("input", { ...look, oninput: () => open(box.value), onfocus: () => open(""), onblur: close, onkeydown: key });

  function open(/** @type {string} */ text) {
    if (!text) box.select();
    shown = search(metrics, names(), text);
    list.replaceChildren(...(shown.length ? shown.map(optionOf) : [element("li", {}, soft("no metric has all these words"))]));
    list.hidden = false;
    box.setAttribute("aria-expanded", "true");
    mark(text ? 0 : Math.max(0, shown.indexOf(chosen)));
  }
  function close() {
    list.hidden = true;
    box.setAttribute("aria-expanded", "false");
    box.value = chosen;
  }
  /** @param {string} name @param {number} i */
  function optionOf(name, i) {
    const meaning = element("span", { class: "meaning" }, metrics[name].meaning);
    // The box keeps the focus until the click is through.
    const look = { id: `${id}-${i}`, role: "option", onmousedown: (/** @type {Event} */ event) => event.preventDefault(), onclick: () => take(name) };
    return element("li", look, element("b", {}, name), unitOf(metrics[name]), meaning);
  }
  function mark(/** @type {number} */ i) {
    at = i;
    Array.from(list.children).forEach((item, k) => item.setAttribute("aria-selected", String(k === i)));
    box.setAttribute("aria-activedescendant", `${id}-${i}`);
    list.children[i]?.scrollIntoView({ block: "nearest" });
  }
  function take(/** @type {string} */ name) {
    pick(name);
    box.blur();
  }
  function key(/** @type {KeyboardEvent} */ event) {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") box.blur();
    else if (event.key === "Enter" && shown[at]) take(shown[at]);
    else if (way && shown.length) mark((at + way + shown.length) % shown.length);
    if (way) event.preventDefault();
  }
  const set = (/** @type {string} */ name) => {
    chosen = name;
    if (document.activeElement !== box) box.value = name;
  };
  const node = element("div", { class: "control search" }, element("label", {}, element("span", {}, label), box), list);
  return { node, focus: () => box.focus(), set };
}
