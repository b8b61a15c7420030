// The y axis: linear, or logarithmic with a place for zero below the smallest value.

import { number } from "./numbers";

export interface YScale {
  log: boolean;
  /** To what is drawn; null leaves a gap. */
  to(value: number): number | null;
  from(drawn: number): number;
  range: [number, number];
  splits(low: number, high: number): number[];
  text(drawn: number, format: (value: number) => string): string;
}

const NICE = [1, 2, 2.5, 5, 10];

/** Round numbers between two ends, about `count` of them. */
export function niceSplits(low: number, high: number, count = 5): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = NICE.find((nice) => nice * power >= rough)! * power;
  const out: number[] = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * span; i++) out.push(i * step);
  return out;
}

export function linear(values: Iterable<number>, also: readonly number[] = [], fromZero = false): YScale {
  let [low, high] = ends(values, also);
  if (fromZero) low = Math.min(low, 0);
  if (low > high) [low, high] = [0, 1];
  const pad = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.06;
  return {
    log: false,
    to: (value) => (Number.isFinite(value) ? value : null),
    from: (drawn) => drawn,
    range: [fromZero && low === 0 ? 0 : low - pad, high + pad],
    splits: (a, b) => niceSplits(a, b, 4),
    text: (drawn, format) => format(Math.abs(drawn) < 1e-12 * (high - low) ? 0 : drawn),
  };
}

/** log10; zeros (and what a log scale has no place for) sit on a line of their own at the bottom. */
export function logarithmic(values: Iterable<number>, also: readonly number[] = []): YScale {
  let [low, high] = [Infinity, -Infinity];
  let zeros = false;
  for (const value of both(values, also)) {
    if (value > 0 && Number.isFinite(value)) {
      const place = Math.log10(value);
      if (place < low) low = place;
      if (place > high) high = place;
    } else if (value <= 0) zeros = true;
  }
  if (low > high) [low, high] = [-1, 0];
  const pad = Math.max((high - low) * 0.06, 0.05);
  const floor = low - Math.max((high - low) * 0.12, 0.3);
  const bottom = zeros ? floor - pad : low - pad;
  return {
    log: true,
    to: (value) => (value > 0 && Number.isFinite(value) ? Math.log10(value) : value <= 0 ? floor : null),
    from: (drawn) => (zeros && drawn < (floor + low) / 2 ? 0 : 10 ** drawn),
    range: [bottom, high + pad],
    splits: (a, b) => {
      const from = zeros ? Math.max(a, low - pad) : a;
      const places = logSplits(from, b);
      return zeros && floor >= a ? [floor, ...places] : places;
    },
    text: (drawn, format) => (zeros && Math.abs(drawn - floor) < 1e-9 ? "0" : shortLog(10 ** drawn, format)),
  };
}

const shortLog = (value: number, format: (value: number) => string): string => {
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-6 && (power < -2.5 || power > 3.5) ? number(value, 1) : format(Number(value.toPrecision(3)));
};

/** Places of round numbers on a log axis: powers, then 1-2-5, then whatever is round. */
export function logSplits(low: number, high: number): number[] {
  const span = high - low;
  const out: number[] = [];
  if (span > 2.2) {
    const step = Math.max(1, Math.ceil(span / 5));
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) out.push(at);
    return out;
  }
  if (span > 0.55) {
    for (let power = Math.floor(low); power <= high; power++)
      for (const head of span > 1.2 ? [1, 3] : [1, 2, 5]) {
        const at = power + Math.log10(head);
        if (at >= low && at <= high) out.push(at);
      }
    if (out.length >= 2) return out;
  }
  return niceSplits(10 ** low, 10 ** high, 4).filter((value) => value > 0).map(Math.log10);
}

function* both(values: Iterable<number>, also: readonly number[]): Generator<number> {
  yield* values;
  yield* also;
}

function ends(values: Iterable<number>, also: readonly number[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of both(values, also))
    if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return [low, high];
}

/** Whether a log axis shows more: nothing below zero, and more than a factor of 30 inside. */
export function wantsLog(values: Iterable<number>): boolean {
  let [low, high, zeros, count] = [Infinity, 0, 0, 0];
  for (const value of values) {
    if (value < 0) return false;
    count += 1;
    if (value === 0) zeros += 1;
    else if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return zeros < count && high / low > 30;
}
