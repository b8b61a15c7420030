// Things that happened, as marks on every chart: shape and colour say what.

import type { Finding, RunEvent } from "../data/types";
import { words } from "./numbers";

export interface Mark {
  step: number;
  /** Where it is on the axis that is drawn; the step itself unless another axis is. */
  x?: number;
  kind: string;
  text: string;
}

interface Look {
  glyph: string;
  colour: string;
  name: string;
}

const LOOKS: Record<string, Look> = {
  checkpoint: { glyph: "◆", colour: "quiet", name: "Checkpoint" },
  resume: { glyph: "↻", colour: "accent", name: "Resume" },
  skip: { glyph: "✕", colour: "warning", name: "Step skipped" },
  guard: { glyph: "✕", colour: "warning", name: "Guard" },
  clip: { glyph: "✕", colour: "warning", name: "Clipped" },
  rollback: { glyph: "⟲", colour: "error", name: "Rolled back" },
  lr: { glyph: "∿", colour: "accent", name: "Learning rate" },
  "finding error": { glyph: "■", colour: "error", name: "Finding" },
  "finding warning": { glyph: "▲", colour: "warning", name: "Finding" },
  "finding info": { glyph: "●", colour: "info", name: "Finding" },
};
const OTHER: Look = { glyph: "·", colour: "quiet", name: "Event" };
/** Noted once at the start of every run, of no use on a chart. */
const SILENT = new Set(["flops", "finding"]);

export function lookOf(kind: string): Look {
  const known = LOOKS[kind];
  if (known) return known;
  if (kind.startsWith("guard") || kind.includes("skip")) return LOOKS["skip"]!;
  if (kind.includes("learning_rate") || kind.startsWith("lr")) return LOOKS["lr"]!;
  return { ...OTHER, name: words(kind) };
}

export function marksOf(events: readonly RunEvent[], findings: readonly Finding[]): Mark[] {
  const marks: Mark[] = events
    .filter(({ kind }) => !SILENT.has(kind))
    .map(({ step, kind, text }) => ({ step, kind, text: `${lookOf(kind).name}: ${text}` }));
  for (const { first_step, severity, name, sites } of findings)
    marks.push({ step: first_step, kind: `finding ${severity}`, text: `${words(name)} from here (${sites[0] ?? ""})` });
  return marks.sort((a, b) => a.step - b.step);
}
