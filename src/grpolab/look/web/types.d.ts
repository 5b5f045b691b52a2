// The document that Python writes into the page (data.py), and what the modules make of it. Types only.

import type UPlot from "uplot";

declare global {
  type Plot = UPlot;
  type PlotOptions = UPlot.Options;

  /** Base64 of 3 bytes per number, numbers as they are, or one that holds at every step. */
  type Packed = string | number | (number | null)[];

  interface Sweep {
    format: 1;
    name: string;
    question: string;
    written: string;
    live_s: number | null;
    thinning: { every: number; says: string };
    t95: number[];
    metrics: Record<string, Metric>;
    studies: Study[];
    runs: Run[];
    claims: Claim[];
    samples: Sample[];
    progress: null | { done: number; of: number; says: string };
  }
  interface Metric {
    meaning: string;
    unit: string;
    kind: string;
    of_step?: string;
    share?: boolean;
  }
  interface Arm {
    name: string;
    colour: string;
    dash: number[];
  }
  /** Run (an index, -1 without one), arm, facet, seed. */
  type Cell = [number, number, number, number];
  interface Study {
    name: string;
    question: string;
    compare: string;
    baseline: string;
    paired: boolean;
    arms: Arm[];
    facets: string[];
    facet_name: string;
    score: { metric: string; name: string };
    cells: Cell[];
  }
  interface Curve {
    x: Record<string, Packed>;
    y: Record<string, Packed>;
    peaks?: Record<string, [number, number][]>;
    carried?: number;
  }
  interface Finding {
    confidence: string;
    cause: string;
    says: string;
    evidence: string[];
    remedy: string;
  }
  interface Run {
    signature: string;
    outcome: string;
    reason: string;
    lost: string;
    steps: number | null;
    seconds: number | null;
    folder?: string;
    mlflow?: string;
    settings: Record<string, string>;
    findings: Finding[];
    /** Steps at which something happened to it, with what. */
    marks: [number, string][];
    score?: (number | null)[];
    train?: Curve;
    eval?: Curve;
  }
  interface ClaimTask {
    name: string;
    margin: number | null;
    start: number | null;
    differences: [number, number | null][];
  }
  interface Claim {
    study: string;
    id: string;
    says: string;
    registered: string;
    source: string;
    metric: string;
    /** The metric whose curve belongs to it, where `metric` is a number of a whole run. */
    curve?: string;
    where: string;
    contrast: string;
    verdict: string;
    found: string;
    /** The verdict, `in part` where not each task shows it. */
    word: string;
    kind: string;
    because: string;
    rollouts: string;
    label: string;
    why: string;
    n: number;
    seeds: number;
    size: string;
    effect: number | null;
    low: number | null;
    high: number | null;
    p: number | null;
    adjusted_p: number | null;
    q: number | null;
    flags: string[];
    sentence: string;
    log: boolean;
    arms: string[];
    tasks: ClaimTask[];
    looks: number[];
    yaml: string;
  }
  interface Completion {
    text: string;
    reward: number | null;
    parts: Record<string, number | null>;
    advantage: number | null;
    tokens: string[];
    ratio?: Packed;
    log_prob?: Packed;
    clip?: string;
    entropy?: Packed;
    gap?: Packed;
  }
  interface Prompt {
    prompt: string;
    completions: Completion[];
  }
  interface Sample {
    run: number;
    steps: { step: number; prompts: Prompt[] }[];
  }

  /** What is seen, as it stands in the address. */
  interface State {
    tab: string;
    study: string;
    claim: string;
    unit: string;
    metric: string;
    off: string[];
    x: string;
    smooth: string;
    lines: string;
    show: string;
    to: string;
    facet: string;
    log: boolean;
    zoom: number[];
    table: boolean;
    find: string;
    sort: string;
    run: string;
    metrics: string[];
    sample: string;
    beside: string;
    step: number;
    prompt: number;
    colour: string;
  }

  /** One run's numbers of one metric. */
  interface Trace {
    seed: number;
    steps: Float64Array;
    x: Float64Array;
    y: Float64Array;
  }
  /** A line with its band; `n` counts the runs in each of its points. */
  interface Mean {
    steps: Float64Array;
    x: Float64Array;
    y: Float64Array;
    low: Float64Array;
    high: Float64Array;
    n: Float64Array;
  }
  interface ArmLines {
    name: string;
    colour: string;
    dash: number[];
    mean: Mean;
    traces: Trace[];
    /** Without a band: more than six would hide the lines. */
    plain?: boolean;
  }
  interface Line {
    arm: ArmLines;
    seed: number | null;
    steps: Float64Array;
    x: Float64Array;
    y: Float64Array;
    band: Mean | null;
  }
  interface Panel {
    title: string;
    row: string;
    arms: ArmLines[];
  }
  /** Panels with what is written on their axes; `reference`: the value of no difference. */
  interface Picture {
    title: string;
    panels: Panel[];
    x: string;
    y: string;
    log: boolean;
    seeds: boolean;
    zoom: number[];
    reference: number | null;
    /** Steps at which something happened: vertical lines. */
    marks: number[];
    note: string;
  }
  interface Charts {
    picture: Picture;
    draw: (picture: Picture) => void;
    key: (event: KeyboardEvent) => boolean;
    close: () => void;
  }
  /** A claim's difference on a scale; a margin of 0: none was stated. */
  interface Effect {
    effect: number;
    low: number;
    high: number;
    margin: number;
  }
  interface Scale {
    to: (value: number) => number;
    ticks: number[];
    text: (value: number) => string;
    ends: [number, number];
  }
  /** Claims that share a scale. */
  interface Group {
    title: string;
    question: string;
    unit: string;
    scale: Scale;
    factor: boolean;
    rows: { claim: Claim; effect: Effect | null; text: string }[];
  }
  /** What a view offers to be saved. */
  interface Seen {
    name: string;
    picture: (() => SVGSVGElement) | null;
    rows: () => (string | number)[][];
  }
  interface App {
    sweep: Sweep;
    state: State;
    go: (change: Partial<State>, opens?: boolean) => void;
  }
  interface View {
    update: (state: State) => void;
    seen: () => Seen;
    find?: () => void;
    key?: (event: KeyboardEvent) => boolean;
    close?: () => void;
  }
}
