// What leaves the page: CSV, SVG and PNG of what is seen, and the link to it.

import { element } from "./elements.js";

/** Return rows as CSV (RFC 4180); numbers with every digit they have. @param {(string | number)[][]} rows */
export function toCsv(rows) {
  /** @param {string | number} value */
  const cell = (value) => {
    if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(7))) : "";
    return /[",\r\n]/.test(value) || value !== value.trim() ? `"${value.replaceAll('"', '""')}"` : value;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

/** @param {SVGSVGElement} picture */
const toSvg = (picture) => `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}\n`;

/** Return a picture as PNG, twice as sharp as its size says. @param {SVGSVGElement} picture @returns {Promise<Blob>} */
async function toPng(picture) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(toSvg(picture))}`;
  await image.decode();
  const [width, height] = [picture.width.baseVal.value, picture.height.baseVal.value];
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("this browser drew no PNG"))), "image/png"));
}

/** @param {Blob} blob @param {string} name */
function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Save what is seen as a file. @param {Seen} seen @param {"csv" | "svg" | "png"} kind */
export async function save(seen, kind) {
  const name = `${seen.name.replace(/[^\w.-]+/g, "_").slice(0, 120)}.${kind}`;
  if (kind === "csv") download(new Blob([toCsv(seen.rows())], { type: "text/csv;charset=utf-8" }), name);
  else if (seen.picture) {
    const picture = seen.picture();
    download(kind === "svg" ? new Blob([toSvg(picture)], { type: "image/svg+xml" }) : await toPng(picture), name);
  }
}
