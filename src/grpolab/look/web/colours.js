// The colours of the page, which follow the system's light or dark.

/** @type {Record<string, {light: string, dark: string, mark: "up" | "down" | "square" | "circle"}>} */
const VERDICTS = {
  supported: { light: "#00724f", dark: "#35c193", mark: "up" },
  opposite: { light: "#b2182b", dark: "#ff8a7a", mark: "down" },
  negligible: { light: "#0060a0", dark: "#6db6ee", mark: "square" },
  other: { light: "#77726a", dark: "#a39d92", mark: "circle" },
};
const LIKE = /** @type {Record<string, string>} */ ({ holds: "supported", fails: "opposite" });

/** Whether the page is dark now. */
export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

/** Return a colour of the style, by the name of its variable. @param {string} name */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function verdictLook(/** @type {string} */ verdict) {
  const { light, dark, mark } = VERDICTS[LIKE[verdict] ?? verdict] ?? VERDICTS.other;
  return { colour: isDark() ? dark : light, mark };
}

function luminance(/** @type {number[]} */ rgb) {
  const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Return a colour made lighter until it stands out from a dark ground (contrast 4.5); black becomes a light grey. @param {string} colour #rrggbb */
export function lightened(colour) {
  const rgb = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  if (rgb.some(Number.isNaN)) return "#bbbbbb";
  const hex = (/** @type {number[]} */ mixed) => `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
  // Black has no hue to keep: it takes the place that it has on paper, that of the strongest contrast.
  const enough = Math.max(...rgb) < 16 ? 12 : 4.5;
  const mixes = Array.from({ length: 21 }, (_, i) => rgb.map((value) => Math.round(value + ((255 - value) * i) / 20)));
  return hex(mixes.find((mixed) => (luminance(mixed) + 0.05) / (luminance([0x1a, 0x1a, 0x18]) + 0.05) >= enough) ?? [255, 255, 255]);
}

/** Return an arm's colour on the page as it is now. @param {string} colour */
export const armColour = (colour) => isDark() ? lightened(colour) : /^#[0-9a-f]{6}$/i.test(colour) ? colour : "#555555";
