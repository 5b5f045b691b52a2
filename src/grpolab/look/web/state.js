// What is seen, as text in the address: only what differs from the start stands there.

/** @type {State} */
export const START = {
  tab: "answer", study: "", claim: "", unit: "margins",
  metric: "", off: [], x: "rollout_step", smooth: "tenth", lines: "mean", show: "absolute", to: "", facet: "", log: false, zoom: [], table: false,
  find: "", sort: "", run: "", metrics: [],
  sample: "", beside: "", step: -1, prompt: 0, colour: "ratio",
};
export const TABS = ["answer", "curves", "runs", "tokens", "report"];
/** @type {Record<string, string[] | undefined>} */
const CHOICES = {
  tab: TABS, unit: ["margins", "own"], lines: ["mean", "seeds"], show: ["absolute", "difference"],
  smooth: ["none", "tenth", "fifth"], colour: ["ratio", "clip", "advantage", "entropy", "gap"],
};

/** Return the state as the part of an address behind `#`. Lists repeat their key, so that any name may stand in them. @param {State} state */
export function toHash(state) {
  const words = new URLSearchParams();
  for (const [key, start] of Object.entries(START)) {
    const value = state[/** @type {keyof State} */ (key)];
    if (Array.isArray(value)) for (const one of value) words.append(key, String(one));
    else if (value !== start || key === "tab") words.set(key, String(value));
  }
  // Colons, slashes and commas may stand in a fragment as they are: links stay legible.
  return words.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
}

/** Return the state of an address; what it does not say, or says wrongly, is as at the start. @param {string} hash @returns {State} */
export function fromHash(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const made = Object.entries(START).map(([key, start]) => {
    const [texts, allowed] = [words.getAll(key), CHOICES[key]];
    const numbers = texts.map((text) => (text ? Number(text) : NaN));
    if (!texts.length) return [key, start];
    if (key === "zoom") return [key, numbers.length === 2 && numbers.every(Number.isFinite) && numbers[0] < numbers[1] ? numbers : []];
    if (Array.isArray(start)) return [key, texts];
    if (typeof start === "number") return [key, Number.isSafeInteger(numbers[0]) ? numbers[0] : start];
    if (typeof start === "boolean") return [key, texts[0] === "true"];
    return [key, !allowed || allowed.includes(texts[0]) ? texts[0] : start];
  });
  return Object.fromEntries(made);
}
