// Choosing a kind and a statistic of the layers.

import type { Run } from "../data/types";
import { words } from "../draw/numbers";
import { Choice } from "../parts/controls";

const KINDS = ["gradient", "update", "activation", "parameter", "optimizer", "attention"];
const BEST: Record<string, string[]> = {
  gradient: ["rms", "norm"], update: ["ratio"], activation: ["std", "rms"], parameter: ["rms"],
  optimizer: ["g2_over_v_rms"], attention: ["entropy"], category: ["loss"],
};
/** Counts of what is almost never there stand last. */
const LAST = /^num_/;

/** Kinds that have several sites, those of the model first. */
export function layerKinds(run: Run): string[] {
  const several = Object.keys(run.columns).filter((kind) => kind !== "scalar" && kind !== "summary" && statsOf(run, kind).length > 0);
  return several.sort((a, b) => (KINDS.indexOf(a) + 1 || 99) - (KINDS.indexOf(b) + 1 || 99));
}

export function statsOf(run: Run, kind: string): string[] {
  const columns = run.columns[kind];
  if (!columns) return [];
  const best = BEST[kind] ?? [];
  const stored = Object.entries(columns.stats).filter(([, where]) => where.length > 2).map(([stat]) => stat);
  const computed = Object.entries(columns.computed ?? {}).filter(([, where]) => where.length > 2).map(([stat]) => stat);
  return [...new Set([...best.filter((stat) => stored.includes(stat)), ...stored.filter((stat) => !LAST.test(stat)), ...computed, ...stored.filter((stat) => LAST.test(stat))])];
}

export function picked(run: Run, kind: string | undefined, stat: string | undefined, first = "gradient"): [string, string] {
  const kinds = layerKinds(run);
  const theKind = kind && kinds.includes(kind) ? kind : kinds.includes(first) ? first : (kinds[0] ?? "");
  const stats = statsOf(run, theKind);
  return [theKind, stat && stats.includes(stat) ? stat : (stats[0] ?? "")];
}

export function KindAndStat({ run, kind, stat, onChange }: { run: Run; kind: string; stat: string; onChange(change: { kind: string; stat: string }): void }) {
  return (
    <>
      <Choice label="What" value={kind} options={layerKinds(run).map((one) => [one, words(one)] as const)} onChange={(next) => onChange({ kind: next, stat: statsOf(run, next).includes(stat) ? stat : (statsOf(run, next)[0] ?? "") })} />
      <Choice label="Statistic" value={stat} options={statsOf(run, kind).map((one) => [one, one] as const)} onChange={(next) => onChange({ kind, stat: next })} />
    </>
  );
}
