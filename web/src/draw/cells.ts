// A line of a heatmap.

import { BAD, MISSING } from "../data/frame";

export interface Cells {
  values: Float32Array;
  flags: Uint8Array;
}

/** Of the buckets that share a pixel, the one that is drawn: NaN and Inf first, then the largest. */
export function strongest({ values, flags }: Cells, from: number, to: number): number {
  let best = from;
  for (let i = from + 1; i < to; i++) {
    if (flags[i]! & MISSING) continue;
    const [bad, worse] = [(flags[best]! & BAD) > 0, (flags[i]! & BAD) > 0];
    if (flags[best]! & MISSING || (worse && !bad) || (worse === bad && Math.abs(values[i]!) > Math.abs(values[best]!))) best = i;
  }
  return best;
}
