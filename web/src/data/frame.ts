// A frame: a JSON header and the arrays behind it, in one buffer (docs/api.md).

export type Numbers = Float64Array | Float32Array | Uint8Array;

export interface Frame<H> {
  header: H;
  arrays: Record<string, Numbers>;
}

interface Entry {
  dtype: "float64" | "float32" | "uint8";
  shape: number[];
  offset: number;
}

/** Reads a frame without copying: the arrays are views of the buffer. */
export function readFrame<H>(buffer: ArrayBuffer): Frame<H> {
  const length = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  const { arrays: entries, ...header } = JSON.parse(text) as H & { arrays: Record<string, Entry> };
  const arrays: Record<string, Numbers> = {};
  for (const [name, { dtype, shape, offset }] of Object.entries(entries)) {
    const size = shape.reduce((product, n) => product * n, 1);
    const at = 4 + length + offset;
    arrays[name] =
      dtype === "float64"
        ? new Float64Array(buffer, at, size)
        : dtype === "float32"
          ? new Float32Array(buffer, at, size)
          : new Uint8Array(buffer, at, size);
  }
  return { header: header as unknown as H, arrays };
}

export const IS_NAN = 1;
export const POS_INF = 2;
export const NEG_INF = 4;
export const BAD = IS_NAN | POS_INF | NEG_INF;
export const MISSING = 128;

/** A value with its flags as the server's JSON has it: a number, a text, or null. */
export function spelled(flags: number, value: number): number | "NaN" | "Infinity" | "-Infinity" | null {
  if (flags & MISSING) return null;
  if (flags & IS_NAN) return "NaN";
  return flags & POS_INF ? "Infinity" : flags & NEG_INF ? "-Infinity" : value;
}

/** "NaN", "+Inf" … of a bucket's flags; "" when all its values are finite. */
export function flagText(flags: number): string {
  const parts: string[] = [];
  if (flags & IS_NAN) parts.push("NaN");
  if (flags & POS_INF) parts.push("+Inf");
  if (flags & NEG_INF) parts.push("−Inf");
  return parts.join(", ");
}
