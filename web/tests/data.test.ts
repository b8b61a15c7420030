import { describe, expect, it } from "vitest";
import { flagText, readFrame } from "../src/data/frame";
import { allKeys, keyText, parseKey } from "../src/data/key";
import { smoothedValues } from "../src/draw/smooth";

function frame(header: object, arrays: ArrayBuffer): ArrayBuffer {
  let text = JSON.stringify(header);
  while ((4 + text.length) % 8) text += " ";
  const out = new Uint8Array(4 + text.length + arrays.byteLength);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(new TextEncoder().encode(text), 4);
  out.set(new Uint8Array(arrays), 4 + text.length);
  return out.buffer;
}

describe("a frame", () => {
  it("is read as views of one buffer", () => {
    const data = new ArrayBuffer(24);
    new Float64Array(data, 0, 2).set([1, 2]);
    new Uint8Array(data, 16, 3).set([0, 1, 128]);
    const read = readFrame<{ run: string }>(
      frame({ run: "a", arrays: { steps: { dtype: "float64", shape: [2], offset: 0 }, flags: { dtype: "uint8", shape: [3], offset: 16 } } }, data),
    );
    expect(read.header).toEqual({ run: "a" });
    expect([...read.arrays["steps"]!]).toEqual([1, 2]);
    expect([...read.arrays["flags"]!]).toEqual([0, 1, 128]);
  });
  it("says what a number can't", () => expect(flagText(1 | 4)).toBe("NaN, −Inf"));
});

describe("keys", () => {
  const columns = { gradient: { sites: ["a.b"], stats: { rms: [0] }, computed: {}, histograms: [] }, scalar: { sites: ["val/loss"], stats: { value: [0] }, computed: {}, histograms: [] } };
  it("are read back", () => {
    for (const text of allKeys(columns)) expect(keyText(parseKey(text, columns))).toBe(text);
    expect(parseKey("val/loss", columns).kind).toBe("scalar");
    expect(parseKey("gradient/a.b/rms", columns)).toEqual({ kind: "gradient", site: "a.b", stat: "rms" });
  });
});

describe("smoothing", () => {
  it("begins at the first value and skips NaN", () => {
    const out = smoothedValues([2, NaN, 4], 0.5);
    expect(out[0]).toBeCloseTo(2);
    expect(out[1]).toBeCloseTo(2);
    expect(out[2]).toBeGreaterThan(2);
    expect(out[2]).toBeLessThan(4);
  });
});
