// The tab of tokens: a prompt's whole group, every token in the colour of what happened to it.

import { ink, isDark } from "./colours.js";
import { numbersOf, placeOf } from "./document.js";
import { canvas, words } from "./drawing.js";
import { choice, element, shape, soft, switcher, table } from "./elements.js";
import { number, signed } from "./numbers.js";

const MOST_ROWS = 200; // of a table: it costs more than the coloured text, and CSV has them all
const COLOURS = { ratio: "importance ratio", clip: "clip side", advantage: "advantage", entropy: "entropy", gap: "sampler gap" };
const NOT_KEPT = "this run kept no completions of that prompt at that step";
const SIDES = /** @type {Record<string, string>} */ ({ "^": "clipped above", v: "clipped below", ".": "not clipped" });

/** @typedef {{text: string, ratio: number, log_prob: number, clip: string, advantage: number, entropy: number, gap: number}} Token */
/** @typedef {{name: string, prompt: string | null, completions: {one: Completion, tokens: Token[]}[]}} Shown */

/** @param {Completion} completion @returns {Token[]} */
export function tokensOf({ tokens, clip, advantage, ratio, log_prob: logProb, entropy, gap }) {
  const [r, p, e, g] = [ratio, logProb, entropy, gap].map((packed) => numbersOf(packed, tokens.length));
  const same = { advantage: advantage ?? NaN };
  return tokens.map((text, i) => ({ text, ratio: r[i], log_prob: p[i], clip: clip?.[i] ?? "", ...same, entropy: e[i], gap: g[i] }));
}

/** Return how strongly a token is coloured, from -1 to 1; NaN where its number is absent.
 * @param {Token} token @param {string} by @param {number} most the number of the strongest colour */
export function strengthOf(token, by, most) {
  if (by === "clip") return token.clip === "^" ? 1 : token.clip === "v" ? -1 : token.clip ? 0 : NaN;
  return Math.max(-1, Math.min(1, valueOf(token, by) / most));
}

/** @param {Token} token @param {string} by */
const valueOf = (token, by) => (by === "ratio" ? Math.log(token.ratio) : token[/** @type {"gap"} */ (by)]);

function shade(/** @type {number} */ strength) {
  const opacity = (Math.abs(strength) * (isDark() ? 0.75 : 0.6)).toFixed(3);
  return strength > 0 ? `rgba(213, 94, 0, ${opacity})` : strength < 0 ? `rgba(0, 114, 178, ${opacity})` : "none";
}

/** @param {HTMLElement} root @param {App} app @returns {View} */
export function tokensView(root, app) {
  const { sweep, go } = app;
  const label = (/** @type {Sample} */ sample) => {
    const place = placeOf(sweep, sweep.runs[sample.run].signature);
    return place ? `${place.arm.name}, ${place.facet}, seed ${place.cell[3]}` : sweep.runs[sample.run].signature;
  };
  const options = sweep.samples.map((sample) => /** @type {[string, string]} */ ([sweep.runs[sample.run].signature, label(sample)]));
  const sampleOf = (/** @type {string} */ name) => sweep.samples.find((sample) => sweep.runs[sample.run].signature === name);
  const run = choice("run", options, (sample) => go({ sample }));
  const beside = choice("beside it", [], (signature) => go({ beside: signature }));
  const step = choice("rollout step", [], (value) => go({ step: Number(value) }));
  const prompt = choice("prompt", [], (value) => go({ prompt: Number(value) }));
  const colour = switcher("colour", Object.entries(COLOURS).map(([key, name]) => [key, name, `key ${key[0]}`]), (value) => go({ colour: value }));
  const [legend, groups] = [element("div", { class: "scale" }), element("div", { class: "groups" })];
  const tip = element("div", { class: "tip free", hidden: true });
  root.append(element("div", { class: "controls" }, run.node, beside.node, step.node, prompt.node, colour.node), legend, groups, tip);

  const now = () => {
    const first = sampleOf(app.state.sample) ?? sweep.samples[0];
    const steps = first?.steps ?? [];
    const found = steps.findIndex((one) => one.step === app.state.step);
    const at = found < 0 ? steps.length - 1 : found; // the latest, where something has happened to the ratio
    const place = Math.max(0, Math.min(app.state.prompt, (steps[at]?.prompts.length ?? 1) - 1));
    const wanted = steps[at]?.prompts[place]?.prompt;
    const sameOf = (/** @type {Sample | undefined} */ sample) => {
      const prompts = sample?.steps.find((one) => one.step === steps[at]?.step)?.prompts ?? [];
      return sample === first ? prompts[place] : prompts.find((one) => one.prompt === wanted);
    };
    const shown = [first, sampleOf(app.state.beside)].flatMap((sample) => {
      const same = sameOf(sample);
      const completions = (same?.completions ?? []).map((one) => ({ one, tokens: tokensOf(one) }));
      return sample ? [{ name: label(sample), prompt: same?.prompt ?? null, completions }] : [];
    });
    // One scale for all that is shown, as strong as its strongest token.
    const all = shown.flatMap(({ completions }) => completions.flatMap(({ tokens }) => tokens));
    const most = all.reduce((most, token) => Math.max(most, Math.abs(valueOf(token, app.state.colour)) || 0), 0) || 0.05;
    return { first, steps, at, place, shown, most, sameOf };
  };

  let latest = /** @type {Shown[]} */ ([]);
  function hover(/** @type {PointerEvent} */ event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const [g, c, t] = (target.dataset.token ?? "").split(" ").map(Number);
    const token = latest[g]?.completions[c]?.tokens[t];
    tip.hidden = !token || target.dataset.token === undefined;
    if (tip.hidden) return;
    tip.replaceChildren(...factsOf(token));
    const box = target.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - 210))}px`;
    tip.style.top = `${box.bottom + 170 > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  }
  groups.addEventListener("pointerover", hover);
  groups.addEventListener("pointerleave", () => (tip.hidden = true));

  return {
    update(state) {
      const { first, steps, at, place, shown, most, sameOf } = now();
      if (!first) return groups.replaceChildren(element("p", {}, "No completions were kept, or the page had no room for them."));
      run.set(sweep.runs[first.run].signature);
      // Only runs that have the same prompt: arms share prompts and noise, so that what differs is what they learnt.
      const fits = (/** @type {Sample | undefined} */ sample) => sample !== first && sameOf(sample);
      const others = options.filter(([signature]) => signature === state.beside || fits(sampleOf(signature)));
      beside.set(state.beside, [["", "none"], ...others]);
      step.set(String(steps[at].step), steps.map((one) => String(one.step)));
      prompt.set(String(place), steps[at].prompts.map((one, i) => [String(i), `${i + 1}: ${one.prompt.slice(0, 60)}`]));
      colour.set(state.colour);
      legend.replaceChildren(...legendOf(state.colour, most));
      tip.hidden = true;
      latest = shown;
      groups.replaceChildren(...shown.map((group, g) => groupOf(group, g, state.colour, most)));
    },
    seen() {
      const { steps, at, shown, most } = now();
      const step = steps[at]?.step ?? 0;
      const picture = shown.length ? () => drawTokens(shown, app.state.colour, most) : null;
      return { name: `${sweep.name} tokens step ${step}`, picture, rows: () => rowsOfTokens(shown, step) };
    },
    key(event) {
      const { steps, at, place } = now();
      const by = Object.keys(COLOURS).find((name) => name[0] === event.key);
      const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key] ?? 0;
      const within = (/** @type {number} */ i, /** @type {number} */ count) => Math.max(0, Math.min(count - 1, i));
      if (by) go({ colour: by });
      else if (!way || !steps.length) return false;
      else if (/Left|Right/.test(event.key)) go({ step: steps[within(at + way, steps.length)].step });
      else go({ prompt: within(place + way, steps[at].prompts.length) });
      return true;
    },
  };
}

/** What a token is shown as: a line break as a sign and a break. @param {string} text */
const visible = (text) => text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t") || "∅";

function partsOf(/** @type {Completion} */ { reward, parts, advantage }) {
  const all = Object.entries(parts).map(([name, value]) => `${name} ${number(value)}`);
  return `reward ${number(reward)} (${all.join(", ")}), advantage ${signed(advantage)}`;
}

function textsOf(/** @type {Token} */ { ratio, log_prob: logProb, clip, advantage, entropy, gap }) {
  return [number(ratio, 4), number(logProb, 4), SIDES[clip] ?? "–", signed(advantage), number(entropy), number(gap)];
}
const FACTS = ["ratio", "log-prob", "clip", "advantage", "entropy", "sampler gap"];

function factsOf(/** @type {Token} */ token) {
  const rows = textsOf(token).map((text, i) => text !== "–" && element("tr", {}, element("th", {}, FACTS[i]), element("td", {}, text)));
  return [element("div", {}, element("b", {}, JSON.stringify(token.text))), element("table", {}, ...rows)];
}

/** @param {Shown} group @param {number} g @param {string} by @param {number} most */
function groupOf({ name, prompt, completions }, g, by, most) {
  const items = completions.map(({ one, tokens }, c) => {
    const spans = tokens.map((token, t) => {
      const strength = strengthOf(token, by, most) || 0;
      const side = by !== "clip" || !strength ? null : strength > 0 ? "high" : "low";
      const look = { class: side, style: `background: ${shade(strength)}`, "data-token": `${g} ${c} ${t}` };
      return element("span", look, visible(token.text));
    });
    const parts = element("div", { class: (one.advantage ?? 0) > 0 ? "parts up" : "parts" }, partsOf(one));
    return element("li", {}, parts, element("p", { class: "text" }, ...spans));
  });
  const tables = completions.map(({ one, tokens }, c) =>
    table(`completion ${c + 1}, its first tokens: ${partsOf(one)}`, ["token", ...FACTS], tokens.slice(0, MOST_ROWS).map((token) => [visible(token.text), ...textsOf(token)])),
  );
  const wide = completions.some(({ tokens }) => tokens.length > 40) ? "100%" : "270px"; // short ones stand side by side
  const list = element("ol", { style: `--wide: ${wide}` }, ...items);
  const clips = completions.flatMap(({ tokens }) => tokens.map(({ clip }) => clip));
  const counts = ["^", "v"].map((side) => `${clips.filter((clip) => clip === side).length} ${SIDES[side]}`);
  const head = element("p", { class: "prompt" }, prompt ?? NOT_KEPT);
  const title = element("h3", {}, name, soft(` ${number(clips.length)} tokens: ${counts.join(", ")}`));
  return element("section", { class: "group" }, title, head, list, element("div", { class: "behind" }, ...tables));
}

/** The legend of a colour. @param {string} by @param {number} most */
function legendOf(by, most) {
  const name = COLOURS[/** @type {keyof typeof COLOURS} */ (by)];
  const ends = by === "ratio" ? [number(Math.exp(-most)), "1", number(Math.exp(most))] : [number(-most), "0", number(most)];
  const texts = by === "clip" ? ["clipped below (advantage < 0)", "not clipped", "clipped above (advantage > 0)"] : ends;
  const boxes = texts.flatMap((text, i) => [element("i", { style: `background: ${shade(i - 1)}` }), text]);
  return [element("b", {}, name), ...(by === "entropy" ? boxes.slice(2) : boxes)]; // no entropy is below zero
}

/** @param {Shown[]} shown @param {number} step @returns {(string | number)[][]} */
function rowsOfTokens(shown, step) {
  const head = ["run", "rollout_step", "prompt", "completion", "reward", "place", "token"];
  const rows = shown.flatMap(({ name, prompt, completions }) =>
    completions.flatMap(({ one, tokens }, c) =>
      tokens.map(({ text, ...numbers }, t) => [name, step, prompt ?? "", c, one.reward ?? NaN, t, text, ...Object.values(numbers)]),
    ),
  );
  return [[...head, "ratio", "log_prob", "clip", "advantage", "entropy", "gap"], ...rows];
}

/** Return the groups as a picture, in letters of one width. @param {Shown[]} shown @param {string} by @param {number} most */
function drawTokens(shown, by, most) {
  const [perLine, wide] = [84, 7.3];
  const body = shape("g", { "font-family": "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", "font-size": 12 });
  let y = 8;
  for (const { name, prompt, completions } of shown) {
    body.append(words(12, (y += 18), name, { "font-weight": 600 }), words(12, (y += 18), (prompt ?? NOT_KEPT).slice(0, perLine)));
    for (const { one, tokens } of completions) {
      body.append(words(12, (y += 20), partsOf(one).slice(0, perLine), { fill: ink("soft"), "font-size": 10 }));
      y += 16;
      let column = 0;
      for (const token of tokens) {
        const text = visible(token.text).replaceAll(/\s/g, "\u00a0").slice(0, perLine);
        if (column + text.length > perLine) [column, y] = [0, y + 18];
        const box = { x: 12 + column * wide, y: y - 12, width: text.length * wide, height: 16 };
        body.append(shape("rect", { ...box, fill: shade(strengthOf(token, by, most) || 0) }), words(box.x, y, text));
        column += text.length;
      }
    }
    y += 16;
  }
  const svg = canvas(24 + perLine * wide, y);
  svg.append(body);
  return svg;
}
