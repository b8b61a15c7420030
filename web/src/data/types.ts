// What the server answers (docs/api.md), as types.

export type Severity = "info" | "warning" | "error";
/** A number, or the text of one that JSON has no word for. */
export type Loose = number | "NaN" | "Infinity" | "-Infinity" | null;

export interface Spark {
  steps: number[];
  low: Loose[];
  high: Loose[];
  last: Loose[];
  flags: number[];
}

export type Status = "running" | "finished" | "failed" | "died" | "broken";

export interface RunLine {
  id: string;
  name: string;
  title: string;
  status: Status;
  problem: string | null;
  version: string;
  last_step: number | null;
  total_steps: number | null;
  started: number | null;
  ended: number | null;
  duration_s: number | null;
  size_bytes: number | null;
  loss: { key: string; last: Loose; spark: Spark } | null;
  num_findings: number | null;
  worst: { id: string; name: string; severity: Severity; text: string; sites: string[] } | null;
}

export interface RunList {
  folder: string;
  version: string;
  runs: RunLine[];
}

export interface ModuleInfo {
  name: string;
  type: string;
  depth: number;
  parameters: string[];
}

export interface ParameterInfo {
  name: string;
  shape: number[];
  dtype: string;
  requires_grad: boolean;
  aliases: string[];
}

export interface Columns {
  sites: string[];
  stats: Record<string, number[]>;
  computed: Record<string, number[]>;
  histograms: number[];
}

export type Axis = "step" | "time" | "tokens" | "samples";

export interface Run {
  id: string;
  name: string;
  title: string;
  status: Status;
  problem: string | null;
  version: string;
  columns_version: string;
  first_step: number | null;
  last_step: number | null;
  total_steps: number | null;
  num_steps: number | null;
  started: number | null;
  ended: number | null;
  duration_s: number | null;
  attempts: { id: number; started: number; ended: number | null; status: string; host: string; first_step: number | null; last_step: number | null }[];
  axes: Axis[];
  config: Record<string, unknown>;
  watch: Record<string, unknown>;
  command: string[];
  directory: string;
  git: Record<string, unknown>;
  packages: Record<string, string>;
  device: Record<string, unknown>;
  models: { name: string; modules: ModuleInfo[]; parameters: ParameterInfo[] }[];
  groups: { optimizer: string; index: number; parameters: string[]; options: Record<string, unknown> }[];
  columns: Record<string, Columns>;
  healthy: Record<string, [number, number]>;
  loss_key: string | null;
}

export interface SeriesHeader {
  run: string;
  version: string;
  x: Axis;
  series: { key: string; arrays?: string; error?: string }[];
  status?: OverviewStatus;
}

export interface OverviewStatus {
  status: Status;
  step: number | null;
  total_steps: number | null;
  frac: number | null;
  eta_s: number | null;
  silent_s: number | null;
  duration_s: number | null;
  epoch: number | null;
  num_epochs: number | null;
  step_s: number | null;
  steps_per_s: number | null;
  samples_per_s: number | null;
  tokens_per_s: number | null;
  flops_per_s: number | null;
  mfu: number | null;
  shares: Record<string, number> | null;
  memory: Record<string, unknown> | null;
  schedule: string | null;
  noise_scale: number | null;
  batch_size: number | null;
  layers: Record<string, number> | null;
}

export interface MatrixHeader {
  run: string;
  version: string;
  kind: string;
  stat: string;
  show: string;
  sites: string[];
}

export interface ProfileHeader {
  run: string;
  version: string;
  kind: string;
  stat: string;
  sites: string[];
  asked: number[];
  steps: number[];
  all_steps: number;
}

export interface HistogramHeader {
  run: string;
  version: string;
  kind: string;
  site: string;
  percentiles: number[];
}

export interface Evidence {
  text: string;
  key: string | null;
  step: number | null;
  value: Loose;
  threshold: Loose;
}

export interface Finding {
  id?: string;
  state?: "open" | "resolved";
  name: string;
  severity: Severity;
  sites: string[];
  first_step: number;
  last_step: number;
  resolved_step: number | null;
  evidence: Evidence[];
  explanation: string;
  causes: { text: string; test: string; confidence: number }[];
  fix: string;
  change: Record<string, unknown>;
  confidence: number;
  symptoms: Finding[];
}

export interface Findings {
  run: string;
  version: string;
  source: "stored" | "computed" | "none";
  findings: Finding[];
}

export interface RunEvent {
  step: number;
  time: number;
  kind: string;
  text: string;
  data: Record<string, unknown>;
}

export interface Events {
  run: string;
  version: string;
  events: RunEvent[];
  left_out: number;
}

export interface Attention {
  run: string;
  version: string;
  step: number | null;
  layers: string[];
  num_heads: number;
  stats: Record<string, Loose[][]>;
}

/** A JSON number that may be a text. */
export function toNumber(value: Loose | undefined): number {
  return value === null || value === undefined ? NaN : Number(value);
}
