// Value → colour, for heatmaps: logarithmic, linear, or signed, with its own place for 0 and NaN.

import { MISSING } from "../data/frame";
import { BAD_COLOUR, SEQUENTIAL, SIGNED } from "./colours";

export type TintKind = "log" | "linear" | "signed";

export interface Tint {
  kind: TintKind;
  low: number;
  high: number;
  zero: boolean;
  /** 0…255 in its table; -1 for zero on a log scale. */
  index(value: number): number;
  colour(value: number, flags: number): number;
  table: Uint32Array;
  /** Value at a share of the scale, for the legend. */
  at(share: number): number;
}

const FRACTIONS = /(_frac|^frozen|^entropy|^clip_ratio)$/;
const SIGNED_STATS = /^(mean|min|max|cosine|sum)$/;

export const tintFor = (stat: string): TintKind =>
  FRACTIONS.test(stat) ? "linear" : SIGNED_STATS.test(stat) ? "signed" : "log";

/** The scale of all these values: its ends leave out the outermost half per cent of either side. */
export function makeTint(kind: TintKind, values: ArrayLike<number>, empty: number): Tint {
  const sizes: number[] = [];
  let zero = false;
  let negative = false;
  const stride = Math.max(1, Math.floor(values.length / 40000));
  for (let i = 0; i < values.length; i += stride) {
    const value = values[i]!;
    if (!Number.isFinite(value)) continue;
    if (value === 0) zero = true;
    if (value < 0) negative = true;
    if (kind === "linear") sizes.push(value);
    else if (value !== 0) sizes.push(Math.log10(Math.abs(value)));
  }
  if (kind === "log" && negative) return makeTint("signed", values, empty);
  sizes.sort((a, b) => a - b);
  const pick = (share: number): number => sizes[Math.min(sizes.length - 1, Math.floor(share * sizes.length))] ?? 0;
  let [low, high] = [pick(0.005), pick(0.995)];
  if (kind === "signed") low = Math.max(low, high - 4);
  if (high - low < 1e-9) [low, high] = kind === "linear" && low >= 0 && high <= 1 ? [0, 1] : [low - 0.5, high + 0.5];
  const span = high - low;
  const clamp = (share: number): number => Math.round(Math.min(1, Math.max(0, share)) * 255);
  const table = kind === "signed" ? SIGNED : SEQUENTIAL;
  const index = (value: number): number => {
    if (kind === "linear") return clamp((value - low) / span);
    if (kind === "log") return value > 0 ? clamp((Math.log10(value) - low) / span) : -1;
    if (value === 0) return 128;
    const share = Math.min(1, Math.max(0, (Math.log10(Math.abs(value)) - low) / span));
    return clamp(0.5 + (value > 0 ? 0.5 : -0.5) * (0.06 + 0.94 * share));
  };
  return {
    kind, low, high, zero, index, table,
    colour(value, flags) {
      if (flags & MISSING) return 0;
      if (flags & 7) return BAD_COLOUR;
      if (Number.isNaN(value)) return 0;
      const at = index(value);
      return at < 0 ? empty : table[at]!;
    },
    at(share) {
      if (kind === "linear") return low + share * span;
      if (kind === "log") return 10 ** (low + share * span);
      const side = share * 2 - 1;
      if (side === 0) return 0;
      return Math.sign(side) * 10 ** (low + Math.abs(side) * span);
    },
  };
}
