/** Moving average with weight `share` on the past, corrected for its start; NaN and Inf are passed over. */
export function smoothedValues(values: ArrayLike<number>, share: number): Float64Array {
  const out = new Float64Array(values.length);
  let [sum, weight] = [0, 0];
  for (let i = 0; i < out.length; i++) {
    const value = values[i]!;
    if (Number.isFinite(value)) {
      sum = sum * share + value * (1 - share);
      weight = weight * share + (1 - share);
    }
    out[i] = weight ? sum / weight : NaN;
  }
  return out;
}
