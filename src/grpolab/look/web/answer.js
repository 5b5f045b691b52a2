// The tab that comes first: what was decided, and behind each verdict the seeds that decided it.

import { verdictLook } from "./colours.js";
import { curveOfClaim, groupBy, studyOf } from "./document.js";
import { button, choice, element, shape, switcher, table } from "./elements.js";
import { differencesOf, drawDots, drawEvidence } from "./evidence.js";
import { axisOf, drawForest, effectOf, effectText, marginScale, mark, ownScale, quantityOf, saysOf, strip, WIDTH } from "./forest.js";
import { number, probability } from "./numbers.js";

/** @type {[string, string, string][]} */
const SCALES = [
  ["margins", "margins", "one scale for all: 1 is the smallest difference that matters"],
  ["own", "own units", "accuracy in points, factors where logarithms were tested"],
];

/** @param {Claim} claim */
const nameOf = (claim) => `${claim.study}.${claim.id}${claim.where ? ` ${claim.where}` : ""}`;

/** What was registered stands first, then what was tested, described, and what holds by construction. @param {Claim} claim */
const rankOf = ({ label, verdict }) => (label === "confirmatory" ? 0 : label === "check" ? 3 : verdict === "described" ? 2 : 1);

/** @param {string} verdict @param {string} label */
const icon = (verdict, label) => shape("svg", { width: 14, height: 14, "aria-hidden": "true" }, mark({ verdict, label }, 7, 7));

/** @param {HTMLElement} root @param {App} app @returns {View} */
export function answerView(root, app) {
  const { sweep, go } = app;
  const asked = [...new Set(sweep.claims.map((claim) => claim.study))];
  const studies = choice("study", [["", "all questions"], ...asked], (study) => go({ study }));
  const unit = switcher("scale", SCALES, (value) => go({ unit: value }));
  const count = element("p", { class: "verdicts" });
  const list = element("div", { class: "forest" });
  root.append(element("div", { class: "controls" }, asked.length > 1 && studies.node, unit.node, count), list);
  const shown = () => sweep.claims.filter((claim) => !asked.includes(app.state.study) || claim.study === app.state.study);
  const opened = () => sweep.claims.find((claim) => nameOf(claim) === app.state.claim);
  const buttons = () => /** @type {HTMLElement[]} */ (Array.from(list.querySelectorAll("button.claim")));

  return {
    update(state) {
      studies.set(asked.includes(state.study) ? state.study : "");
      unit.set(state.unit);
      const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.claim : undefined;
      const verdicts = Array.from(groupBy(shown(), (claim) => claim.verdict)).sort((a, b) => b[1].length - a[1].length);
      count.replaceChildren(
        ...verdicts.map(([verdict, claims]) => element("span", {}, icon(verdict, "confirmatory"), `${claims.length} ${verdict}`)),
        element("span", {}, icon("inconclusive", "exploratory"), "hollow: exploratory"),
      );
      list.replaceChildren(...groupsOf(sweep, shown(), state.unit === "own").map((group) => sectionOf(app, group)));
      if (!sweep.claims.length) list.append(element("p", {}, "This study states no hypotheses. Curves has its numbers."));
      buttons().find((one) => one.dataset.claim === focused)?.focus();
    },
    seen() {
      const claim = opened();
      if (claim) return { name: nameOf(claim), picture: () => drawEvidence(sweep, claim), rows: () => differencesOf(claim) };
      const groups = groupsOf(sweep, shown(), app.state.unit === "own");
      return { name: `${sweep.name} answers`, picture: () => drawForest(groups), rows: () => rowsOfForest(groups) };
    },
    key(event) {
      if (event.key === "Escape" && app.state.claim) go({ claim: "" });
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const at = buttons().indexOf(/** @type {HTMLElement} */ (document.activeElement));
        buttons()[Math.max(0, Math.min(buttons().length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))]?.focus();
      } else return false;
      return true;
    },
  };
}

/** Return the claims in groups that share a scale: by study in margins, by what is measured in units of its own.
 * @param {Sweep} sweep @param {Claim[]} claims @param {boolean} own @returns {Group[]} */
export function groupsOf(sweep, claims, own) {
  const studies = [...new Set(claims.map(({ study }) => study))];
  const place = (/** @type {Claim} */ claim) => (own ? 0 : 10 * studies.indexOf(claim.study)) + rankOf(claim);
  const rows = claims.toSorted((a, b) => place(a) - place(b)).map((claim) => {
    const effect = effectOf(sweep, claim, own);
    const [middle, low, high] = effect ? [effect.effect, effect.low, effect.high].map((value) => effectText(value, own && claim.log)) : [];
    const unit = !own ? "margins" : effect ? quantityOf(sweep, claim).name : "";
    return { claim, effect, unit, text: effect ? `${middle} [${low}, ${high}]` : claim.size };
  });
  const groups = Array.from(groupBy(rows, ({ claim, unit }) => (own ? unit : claim.study)).values(), (members) => {
    const { claim, unit } = members[0];
    const question = own ? "" : sweep.studies.find((one) => one.name === claim.study)?.question ?? "";
    const ends = members.flatMap(({ effect }) => (effect ? [effect.low, effect.high, effect.margin, -effect.margin] : []));
    const title = own ? unit || "counts and trends" : claim.study;
    return { title, question, unit, scale: own ? ownScale(ends, claim.log) : marginScale(), factor: own && claim.log, rows: members };
  });
  return own ? groups.sort((a, b) => Number(!a.unit) - Number(!b.unit) || b.rows.length - a.rows.length) : groups;
}

function rowsOfForest(/** @type {Group[]} */ groups) {
  const head = ["study", "id", "where", "says", "verdict", "label", "unit", "effect", "low", "high", "seeds", "found", "kind"];
  const rows = groups.flatMap(({ unit, factor, rows }) =>
    rows.map(({ claim, effect }) => {
      const numbers = effect ? [effect.effect, effect.low, effect.high].map((value) => (factor ? Math.exp(value) : value)) : ["", "", ""];
      return [claim.study, claim.id, claim.where, claim.says, claim.verdict, claim.label, effect ? unit : "", ...numbers, claim.n, claim.found, claim.kind];
    }),
  );
  return [head, ...rows];
}

/** @param {App} app @param {Group} group */
function sectionOf(app, { title, question, unit, scale, rows }) {
  const { state, go } = app;
  const hasScale = rows.some(({ effect }) => effect);
  const axis = hasScale && shape("svg", { class: "axis", width: WIDTH, height: 20, "aria-hidden": "true" }, axisOf(scale, 0));
  const parts = rows.flatMap(({ claim, effect, text }) => {
    const [name, open] = [nameOf(claim), state.claim === nameOf(claim)];
    const onclick = () => go({ claim: open ? "" : name }, !open);
    const row = element(
      "button",
      { type: "button", class: "claim", "data-claim": name, "aria-expanded": String(open), onclick },
      icon(claim.verdict, claim.label),
      element("span", { class: "says" }, saysOf(claim), !question && element("span", { class: "soft" }, ` ${claim.study}`)),
      effect && shape("svg", { class: "strip", width: WIDTH, height: 26, "aria-hidden": "true" }, strip(claim, effect, scale, 26)),
      element("span", { class: effect ? "value" : "value words", title: text }, text),
      element("span", { class: "verdict", style: `color: ${verdictLook(claim.verdict).colour}` }, claim.word),
    );
    return open ? [row, evidenceOf(app, claim)] : [row];
  });
  const foot = hasScale && element("p", { class: "scale" }, `in ${unit}; grey: too small to matter`);
  return element("section", {}, element("header", {}, element("h2", {}, title), element("p", {}, question), axis), ...parts, foot);
}

/** The seeds and words behind a verdict. @param {App} app @param {Claim} claim */
function evidenceOf({ sweep, go }, claim) {
  const off = studyOf(sweep, claim.study).arms.map(({ name }) => name).filter((name) => claim.arms.length && !claim.arms.includes(name));
  const metric = curveOfClaim(sweep, claim);
  const curves = () => go({ tab: "curves", study: claim.study, metric, off, zoom: [], facet: "", log: claim.log && metric === claim.metric }, true);
  const looks = claim.looks.map((look) => (look === claim.n ? `[${look}]` : String(look))).join(" · ");
  const facts = [
    ["found", claim.found],
    ["size", claim.size],
    ["rollouts", claim.rollouts],
    ["kind", claim.kind + (claim.because ? `: ${claim.because}` : "")],
    ["contrast", claim.contrast],
    ["where", claim.where],
    ["seeds", `${claim.n} used, of ${claim.seeds}`],
    ["looks after", looks && `${looks} seeds`],
    ["p", claim.p === null ? "" : `${probability(claim.p)}; Holm ${probability(claim.adjusted_p)}; q ${probability(claim.q)}`],
    ["label", claim.label + (claim.why ? `: ${claim.why}` : "")],
    ["flags", claim.flags.join("; ")],
    ["source", claim.source],
    ["registered", claim.registered],
  ].flatMap(([name, value]) => (value ? [element("dt", {}, name), element("dd", {}, value)] : []));
  const texts = (/** @type {(string | number)[]} */ row) => row.map((value, i) => (typeof value === "string" || i === 1 ? value : number(value, 4)));
  const [head, ...rows] = differencesOf(claim).map(texts);
  const dots = claim.tasks.length
    ? [element("div", { class: "dots" }, drawDots(sweep, claim)), element("div", { class: "behind" }, table("difference of each seed", head, rows))]
    : [element("p", { class: "soft" }, "A count or a trend: there is no difference of each seed to show.")];
  const open = button("curves of this", curves, { class: "main" });
  const close = button("close", () => go({ claim: "" }));
  const yaml = claim.yaml && element("details", {}, element("summary", {}, "lines of the study file"), element("pre", {}, claim.yaml));
  const sides = element("div", { class: "sides" }, element("div", {}, ...dots), element("dl", {}, ...facts));
  return element("div", { class: "evidence" }, element("p", { class: "sentence" }, claim.sentence), sides, element("p", {}, open, close), yaml);
}
