// Many lines as three: the median and the ends of the middle part, at each step.

export interface Middle {
  low: Float32Array;
  median: Float32Array;
  high: Float32Array;
}

/** Of `rows` (lines of `count` values each); what is not finite does not count, no value is NaN. */
export function middle(values: ArrayLike<number>, rows: readonly number[], count: number, share = 0.8): Middle {
  const out: Middle = { low: new Float32Array(count), median: new Float32Array(count), high: new Float32Array(count) };
  for (let i = 0; i < count; i++) {
    const sorted = rows.map((row) => values[row * count + i]!).filter(Number.isFinite).sort((a, b) => a - b);
    const at = (part: number): number => {
      const place = part * (sorted.length - 1);
      const [left, right] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
      return left === undefined || right === undefined ? NaN : left + (right - left) * (place - Math.floor(place));
    };
    out.low[i] = at((1 - share) / 2);
    out.median[i] = at(0.5);
    out.high[i] = at((1 + share) / 2);
  }
  return out;
}
