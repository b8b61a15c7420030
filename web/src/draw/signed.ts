// The axis of the histograms' signed log2 bins: bins stand side by side, each as wide as the next.

import { number } from "./numbers";

export interface SignedAxis {
  count: number;
  /** Place of a value, in bins from the lowest; NaN stays NaN. */
  place(value: number): number;
  ticks: { place: number; text: string }[];
}

export function signedAxis(low: ArrayLike<number>, high: ArrayLike<number>): SignedAxis {
  const count = low.length;
  const place = (value: number): number => {
    if (Number.isNaN(value)) return NaN;
    let [from, to] = [0, count - 1];
    while (from < to) {
      const middle = (from + to) >> 1;
      // The zero bin is [0, 0]: it holds only zero itself.
      if (high[middle]! > value || (high[middle]! === value && low[middle]! === value)) to = middle;
      else from = middle + 1;
    }
    const [a, b] = [low[from]!, high[from]!];
    if (a === b) return from + 0.5;
    if (!Number.isFinite(a) || !Number.isFinite(b)) return from + 0.5;
    const share = a > 0 ? Math.log(value / a) / Math.log(b / a) : b < 0 ? 1 - Math.log(value / b) / Math.log(a / b) : 0.5;
    return from + Math.min(1, Math.max(0, share));
  };
  const ticks: { place: number; text: string }[] = [];
  for (let power = -12; power <= 7; power++)
    for (const sign of [-1, 1]) {
      const value = sign * 10 ** power;
      if (value > low[0]! && value < high[count - 1]!) ticks.push({ place: place(value), text: number(value, 1) });
    }
  for (let i = 0; i < count; i++) if (low[i] === 0 && high[i] === 0) ticks.push({ place: i + 0.5, text: "0" });
  ticks.sort((a, b) => a.place - b.place);
  return { count, place, ticks };
}

/** Ticks at least `gap` apart, zero always among them. */
export function spaced(ticks: readonly { place: number; text: string }[], gap: number): { place: number; text: string }[] {
  const out: { place: number; text: string }[] = ticks.filter((tick) => tick.text === "0");
  const byRank = [...ticks].sort((a, b) => Math.abs(Math.round(a.place)) - Math.abs(Math.round(b.place)));
  for (const tick of byRank) if (out.every((other) => Math.abs(other.place - tick.place) >= gap)) out.push(tick);
  return out;
}
