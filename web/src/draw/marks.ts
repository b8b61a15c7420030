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
  /** Drawn over the whole height: it may explain what the lines do. */
  line: boolean;
}

const LOOKS: Record<string, Look> = {
  checkpoint: { glyph: "◆", colour: "quiet", name: "Checkpoint", line: false },
  resume: { glyph: "↻", colour: "accent", name: "Resume", line: true },
  skip: { glyph: "✕", colour: "warning", name: "Step skipped", line: true },
  guard: { glyph: "✕", colour: "warning", name: "Guard", line: true },
  clip: { glyph: "✕", colour: "warning", name: "Clipped", line: true },
  rollback: { glyph: "⟲", colour: "error", name: "Rolled back", line: true },
  lr: { glyph: "∿", colour: "accent", name: "Learning rate", line: true },
  "finding error": { glyph: "■", colour: "error", name: "Finding", line: true },
  "finding warning": { glyph: "▲", colour: "warning", name: "Finding", line: true },
  "finding info": { glyph: "●", colour: "info", name: "Finding", line: true },
};
const OTHER: Look = { glyph: "·", colour: "quiet", name: "Event", line: false };
/** Noted once at the start of every run, of no use on a chart. */
const SILENT = new Set(["flops", "finding"]);

export function lookOf(kind: string): Look {
  const known = LOOKS[kind];
  if (known) return known;
  if (kind.startsWith("guard") || kind.includes("skip")) return LOOKS["skip"]!;
  if (kind.includes("learning_rate") || kind.startsWith("lr")) return LOOKS["lr"]!;
  return { ...OTHER, name: words(kind) };
}

/** The same marks on another axis; `steps` and `x` are those of a line of their run. */
export function placed(marks: readonly Mark[], steps: ArrayLike<number>, x: ArrayLike<number>): Mark[] {
  return marks.flatMap((mark) => {
    let at = 0;
    while (at < steps.length - 1 && steps[at + 1]! <= mark.step) at += 1;
    if (!steps.length || mark.step < steps[0]!) return [];
    const next = Math.min(at + 1, steps.length - 1);
    const share = next > at ? Math.min(1, (mark.step - steps[at]!) / (steps[next]! - steps[at]!)) : 0;
    return [{ ...mark, x: x[at]! + share * (x[next]! - x[at]!) }];
  });
}

export function marksOf(events: readonly RunEvent[], findings: readonly Finding[]): Mark[] {
  const marks: Mark[] = events
    .filter(({ kind }) => !SILENT.has(kind))
    .map(({ step, kind, text }) => ({ step, kind, text: `${lookOf(kind).name}: ${text}` }));
  for (const { first_step, severity, name, sites } of findings)
    marks.push({ step: first_step, kind: `finding ${severity}`, text: `${words(name)} from here (${sites[0] ?? ""})` });
  return marks.sort((a, b) => a.step - b.step);
}
