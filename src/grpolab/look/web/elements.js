// Elements made from plain values. Every text of the data goes through text nodes, so none of it can be markup.

/** @typedef {string | number | boolean | null | undefined | ((event: any) => void)} Attribute */
/** @typedef {Record<string, Attribute>} Attributes those that begin with `on` are listeners; false and null leave it out */
/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {string | [value: string, label: string, title?: string]} Option */
/** @typedef {{node: HTMLElement, set: (value: string, options?: Option[]) => void}} Control */

/** @template {Element} Made @param {Made} made @param {Attributes} attributes @param {Child[]} children */
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : String(value));
  }
  const kept = children.filter((child) => child !== null && child !== undefined && child !== false);
  made.append(...kept.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return made;
}

/** @type {<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, look?: Attributes, ...children: Child[]) => HTMLElementTagNameMap[Tag]} */
export const element = (tag, look = {}, ...children) => fill(document.createElement(tag), look, children);

/** Make an element of a picture.
 * @type {<Tag extends keyof SVGElementTagNameMap>(tag: Tag, look?: Attributes, ...children: Child[]) => SVGElementTagNameMap[Tag]} */
export const shape = (tag, look = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), look, children);

/** @param {string} name @param {() => unknown} onclick @param {Attributes} [look] */
export const button = (name, onclick, look = {}) => element("button", { type: "button", onclick, ...look }, name);

/** @param {string} text */
export const soft = (text) => element("span", { class: "soft" }, text);

/** @param {Option} option */
const partsOfOption = (option) => (typeof option === "string" ? [option, option] : option);

/** A labelled list to choose from. @param {string} label @param {Option[]} options @param {(value: string) => void} pick @returns {Control} */
export function choice(label, options, pick) {
  const list = element("select", { onchange: () => pick(list.value) });
  let written = "";
  /** @param {string} value @param {Option[]} given */
  const set = (value, given = options) => {
    const made = given.map(partsOfOption).map(([value, name]) => element("option", { value }, name));
    if (written !== (written = JSON.stringify(given))) list.replaceChildren(...made);
    list.value = value;
  };
  return { node: element("label", { class: "control" }, element("span", {}, label), list), set };
}

/** Make buttons, one of them pressed. @param {string} label @param {Option[]} options @param {(value: string) => void} pick @returns {Control} */
export function switcher(label, options, pick) {
  const buttons = options.map(partsOfOption).map(([value, name, title]) => button(name, () => pick(value), { value, title }));
  const set = (/** @type {string} */ value) => buttons.forEach((one) => one.setAttribute("aria-pressed", String(one.value === value)));
  return { node: element("div", { class: "control switcher", role: "group", "aria-label": label }, ...buttons), set };
}

/** A table, numbers to the right. @param {string} caption @param {(string | number)[]} head @param {Child[][]} rows */
export function table(caption, head, rows) {
  const isNumber = (/** @type {Child} */ value) => typeof value === "string" && /^[+−×]?[\d.,e−]+( s)?$/.test(value);
  const body = rows.map((row) => element("tr", {}, ...row.map((value) => element("td", { class: isNumber(value) && "number" }, value))));
  const heads = element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)));
  return element("table", {}, element("caption", {}, caption), element("thead", {}, heads), element("tbody", {}, ...body));
}

/** Return an address that may be followed: http, or a path beside the page. Others (javascript:) are none. @param {string | undefined} address */
export const safeAddress = (address) => address && (/^https?:\/\//i.test(address) || /^(\.\.?\/)+[\w./-]*$/.test(address)) ? address : null;

/** @param {EventTarget | null} target */
export const isTyping = (target) => target instanceof HTMLElement && target.matches("input:not([type=checkbox]), select, textarea");
