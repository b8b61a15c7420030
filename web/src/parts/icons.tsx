// Small drawings. Severity has a shape besides its colour: square, triangle, circle.

import type { Severity, Status } from "../data/types";

const PATHS: Record<string, string> = {
  findings: "M8 2 14.5 13.5H1.5Z M8 6.5v3.2 M8 11.6v.4",
  overview: "M1.5 8.5h3l2-5 3 9 2-6 1 2h2",
  layers: "M2 3h12M2 6.3h8M2 9.6h12M2 13h6",
  depth: "M3 2v12h11 M4 12l3-4 3 2 4-7",
  updates: "M2 12l4-4 3 3 5-7 M10.5 4H14v3.5",
  distributions: "M2 14V11M5 14V7M8 14V3M11 14V8M14 14v-3",
  attention: "M2 2h4v4H2ZM10 2h4v4h-4ZM2 10h4v4H2ZM10 10h4v4h-4Z",
  series: "M7 2.5a4.5 4.5 0 1 0 .01 0M10.3 10.3 14 14",
  runs: "M2 4h12M2 8h12M2 12h12",
  pin: "M6 2h4l-.5 5 2.5 2.5H4L6.500 7ZM8 9.500V14",
  save: "M8 2v8M4.500 7 8 10.500 11.500 7M2.500 13.500h11",
  sun: "M8 5a3 3 0 1 0 .01 0M8 1v1.500M8 13.500V15M1 8h1.500M13.500 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7Z",
  close: "M3.500 3.500l9 9M12.500 3.500l-9 9",
  chevron: "M6 3.500 10.500 8 6 12.500",
  zoom: "M7 2.500a4.500 4.500 0 1 0 .01 0M10.300 10.300 14 14M5 7h4",
};

export function Icon({ name, label }: { name: string; label?: string }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" role={label ? "img" : undefined} aria-label={label} aria-hidden={label ? undefined : "true"}>
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

const SHAPES: Record<Severity, string> = {
  error: "M3.500 2h9A1.500 1.500 0 0 1 14 3.500v9a1.500 1.500 0 0 1-1.500 1.500h-9A1.500 1.500 0 0 1 2 12.500v-9A1.500 1.500 0 0 1 3.500 2Z",
  warning: "M8 1.800 14.800 14H1.200Z",
  info: "M8 2a6 6 0 1 0 .01 0Z",
};
const SAID: Record<Severity, string> = { error: "Error", warning: "Warning", info: "Note" };

export function SeverityIcon({ severity }: { severity: Severity }) {
  return (
    <svg class={`severity ${severity}`} viewBox="0 0 16 16" role="img" aria-label={SAID[severity]}>
      <path d={SHAPES[severity]} fill="currentColor" />
      <path d={severity === "info" ? "M8 7.300V11M8 5v.1" : severity === "warning" ? "M8 6.300v3.200M8 11.700v.1" : "M8 4.800v3.800M8 11.100v.1"} stroke="var(--surface)" stroke-width="1.600" stroke-linecap="round" />
    </svg>
  );
}

const STATUS: Record<Status, [string, string]> = {
  running: ["●", "running"],
  finished: ["✓", "finished"],
  failed: ["■", "failed"],
  died: ["✕", "died"],
  broken: ["?", "unreadable"],
};

export function StatusBadge({ status }: { status: Status }) {
  const [glyph, text] = STATUS[status] ?? ["·", status];
  return (
    <span class={`status ${status}`}>
      <span aria-hidden="true">{glyph}</span> {text}
    </span>
  );
}
