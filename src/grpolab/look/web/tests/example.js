// A small document with known numbers: two arms, two facets, three seeds, ten steps.

/** @param {number[]} values */
export function pack(values) {
  const view = new DataView(new ArrayBuffer(4));
  const bytes = values.flatMap((value) => {
    view.setFloat32(0, value);
    if (Number.isFinite(value)) view.setUint32(0, view.getUint32(0) + 0x7f + ((view.getUint32(0) >>> 8) & 1)); // to nearest
    return [0, 1, 2].map((place) => view.getUint8(place));
  });
  return btoa(String.fromCharCode(...bytes));
}

const STEPS = Array.from({ length: 10 }, (_, i) => i);

/** A run whose clip fraction is 16 * arm + seed at every step, plus the step. */
function run(arm, facet, seed) {
  const value = 16 * arm + seed;
  return {
    signature: `${arm}${facet}${seed}`.padStart(16, "0"), outcome: "completed", reason: "", lost: "", steps: 10, seconds: 1, settings: {},
    findings: seed === 3 ? [{ confidence: "likely", cause: "small_step", says: "", evidence: [], remedy: "" }] : [],
    score: [0.25, 0.5, 0.25 + arm / 4],
    train: { x: { rollout_step: pack(STEPS), tokens: pack(STEPS.map((step) => step * 64)) }, y: { "clip/active": pack(STEPS.map((step) => value + step)) } },
    eval: { x: { rollout_step: pack([0, 5]) }, y: { "eval/accuracy": pack([0.25, 0.5]) } },
  };
}

/** @returns {any} */
export function sweep() {
  const places = [0, 1].flatMap((arm) => [0, 1].flatMap((facet) => [1, 2, 3].map((seed) => [arm, facet, seed])));
  // Facet first, so that the fifth run is the second arm's second seed of the first facet.
  places.sort((a, b) => a[1] - b[1]);
  const metric = { meaning: "Tokens that the clip binds.", unit: "share of tokens", kind: "update", of_step: "mean", share: true };
  return {
    format: 1, name: "example", question: "Does it matter?", written: "2026-11-25T20:00:00Z", live_s: null,
    thinning: { every: 1, says: "" }, t95: [12.7062, 4.30265, 3.18245], progress: null, samples: [], claims: [],
    metrics: { "clip/active": metric, "eval/accuracy": { ...metric, meaning: "Right answers.", kind: "evaluation" }, unused: metric },
    runs: places.map(([arm, facet, seed]) => run(arm, facet, seed)),
    studies: [
      {
        name: "clip", question: "Which side?", compare: "clip", baseline: "symmetric", paired: true,
        arms: [{ name: "symmetric", colour: "#0072b2", dash: [] }, { name: "higher", colour: "#000000", dash: [4, 2] }],
        facets: ["addition/healthy", "addition/stressed"], facet_name: "task/regime", score: { metric: "eval/accuracy", name: "accuracy" },
        cells: [...places.map(([arm, facet, seed], i) => [i, arm, facet, seed]), [-1, 1, 1, 4]],
      },
    ],
  };
}
