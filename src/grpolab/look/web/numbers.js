// Numbers as text: three digits that count, a true minus, units that a reader knows.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const scientific = (size > 0 && size < 1e-3) || size >= 1e7;
  const tens = () => size.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e").replace("e-", "e−");
  const short = () => (size >= 1000 || Number.isInteger(size) ? GROUPED.format(size) : size.toPrecision(digits));
  return (value < 0 ? "−" : "") + (size === Infinity ? "inf" : scientific ? tens() : short());
}

/** @param {number | null | undefined} value @param {number} [digits] */
export const signed = (value, digits = 3) => typeof value === "number" && value > 0 ? `+${number(value, digits)}` : number(value, digits);

/** Write p the way papers do. @param {number | null} value */
export const probability = (value) => value === null ? "–" : value < 0.001 ? "< .001" : value.toFixed(3).replace(/^0/, "");

/** Write a round number, as it stands at a tick. @param {number} value */
export function roundText(value) {
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-3 && size < 1e4) ? String(Number(value.toPrecision(6))).replace("-", "−") : number(value);
}

export function duration(/** @type {number | null} */ seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${number(seconds, 2)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Return round places on an axis between two ends. @param {number} low @param {number} high @param {boolean} log @param {number} [count] */
export function ticks(low, high, log, count = 5) {
  if (log) {
    const decades = Math.log10(high / low);
    const parts = decades >= 3 ? [1] : decades >= 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const powers = Array.from({ length: Math.ceil(decades) + 2 }, (_, i) => 10 ** (Math.floor(Math.log10(low)) + i));
    const places = powers.flatMap((power) => parts.map((part) => part * power)).filter((at) => at >= low && at <= high);
    const every = Math.ceil(places.length / 8);
    if (places.length > 1) return places.filter((_, i) => i % every === 0);
  }
  const rough = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((one) => one * unit >= rough * 0.7) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}
