// Columns by name, as `torchvitals.record.Key` writes them: kind/site/stat, or just the site of a scalar.

import type { Columns, Run } from "./types";

export interface Key {
  kind: string;
  site: string;
  stat: string;
}

export function keyText({ kind, site, stat }: Key): string {
  return kind === "scalar" ? site : `${kind}/${site}/${stat}`;
}

/** Reads `keyText` back; `kinds` are those of the run, so that `val/loss` may be a scalar. */
export function parseKey(text: string, kinds: Record<string, unknown>): Key {
  const first = text.indexOf("/");
  const last = text.lastIndexOf("/");
  const kind = text.slice(0, first);
  if (first > 0 && last > first + 1 && kind !== "scalar" && kind in kinds)
    return { kind, site: text.slice(first + 1, last), stat: text.slice(last + 1) };
  return { kind: "scalar", site: text, stat: "value" };
}

export function hasKey(run: Run, text: string): boolean {
  const { kind, site, stat } = parseKey(text, run.columns);
  const columns = run.columns[kind];
  const where = columns?.stats[stat] ?? columns?.computed[stat];
  return !!where?.some((index) => columns!.sites[index] === site);
}

/** All stored columns, in stored order. */
export function allKeys(columns: Record<string, Columns>): string[] {
  const keys: string[] = [];
  for (const [kind, { sites, stats }] of Object.entries(columns))
    for (const [stat, where] of Object.entries(stats))
      for (const index of where) keys.push(keyText({ kind, site: sites[index]!, stat }));
  return keys;
}
