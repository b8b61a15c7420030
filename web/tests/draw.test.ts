import { describe, expect, it } from "vitest";
import { strongest } from "../src/draw/cells";
import { placed } from "../src/draw/marks";
import { bytes, duration, labelOf, number, titleOf, unitOf, words } from "../src/draw/numbers";
import { linear, logarithmic, logSplits, niceSplits, wantsLog } from "../src/draw/scale";
import { signedAxis } from "../src/draw/signed";
import { makeTint, tintFor } from "../src/draw/tint";
import { buildTree, firstDepth, rows } from "../src/draw/tree";

describe("numbers", () => {
  it.each([
    [0, "0"], [100.4, "100"], [2.3104, "2.31"], [-0.5, "−0.5"], [3.14159e-7, "3.14×10⁻⁷"], [1e-4, "10⁻⁴"], [9.9999e-5, "10⁻⁴"],
    [12400, "12\u202f400"], [NaN, "NaN"], [-Infinity, "−Inf"],
  ])("%d is %s", (value, text) => expect(number(value)).toBe(text));
  it("has units", () => {
    expect(bytes(383_000_000)).toBe("383 MB");
    expect(duration(0.0394)).toBe("39.4 ms");
    expect(duration(3725)).toBe("1 h 2 min");
    expect(unitOf("machine/process/rss_bytes")(2e9)).toBe("2 GB");
    expect(unitOf("activation/a/zero_frac")(0.25)).toBe("25 %");
  });
  it("has no exponents of JavaScript's", () => expect(number(100, 2)).toBe("100"));
  it("makes words of names", () => {
    expect(labelOf("update/a.b/lr_ratio")).toEqual({ title: "Update lr ratio", where: "a.b" });
    expect(labelOf("my/own/name")).toEqual({ title: "my/own/name" });
    expect(words("frozen_layer")).toBe("Frozen layer");
    expect(titleOf("gradient/[root module]/norm")).toBe("Gradient norm");
    expect(titleOf("gradient/a.b/norm")).toBe("gradient/a.b/norm");
  });
});

describe("scales", () => {
  it("gives round numbers", () => expect(niceSplits(0.3, 4.2, 4)).toEqual([1, 2, 3, 4]));
  it("gives powers over many decades", () => expect(logSplits(-6.5, -0.5)).toEqual([-6, -4, -2]));
  it("keeps a place for zero below the smallest value", () => {
    const scale = logarithmic([0, 1e-3, 1]);
    const zero = scale.to(0)!;
    expect(zero).toBeLessThan(-3);
    expect(zero).toBeGreaterThan(scale.range[0]);
    expect(scale.text(zero, String)).toBe("0");
    expect(scale.to(NaN)).toBeNull();
  });
  it("reaches to its limits", () => expect(linear([1, 2], [10]).range[1]).toBeGreaterThan(10));
  it("is logarithmic where that shows more", () => {
    expect(wantsLog([1e-4, 1])).toBe(true);
    expect(wantsLog([1, 2])).toBe(false);
    expect(wantsLog([-1, 1000])).toBe(false);
    expect(wantsLog([0, 0])).toBe(false);
  });
});

describe("colours of values", () => {
  const tint = makeTint("log", [1e-6, 1e-3, 1, 0], 0x010203);
  it("rise with the value", () => expect(tint.index(1e-6)).toBeLessThan(tint.index(1e-3)));
  it("have their own for zero, NaN and nothing", () => {
    expect(tint.colour(0, 0)).toBe(0x010203);
    expect(tint.colour(1, 1)).not.toBe(tint.colour(1, 0));
    expect(tint.colour(NaN, 128)).toBe(0);
  });
  it("are signed where values are", () => {
    expect(makeTint("log", [-1, 1], 0).kind).toBe("signed");
    expect(tintFor("mean")).toBe("signed");
    expect(tintFor("zero_frac")).toBe("linear");
  });
});

describe("the tree", () => {
  const tree = buildTree(["embed.weight", "blocks.0.mlp.up.weight", "blocks.0.mlp.up.bias", "blocks.0.norm.weight", "blocks.1.mlp.up.weight", "blocks.1.mlp.up.bias", "blocks.1.norm.weight"]);
  it("is in depth order, chains in one line", () => {
    const names = rows(tree, () => true).map(({ label }) => label);
    expect(names).toEqual(["embed.weight", "blocks", "0", "mlp.up", "weight", "bias", "norm.weight", "1", "mlp.up", "weight", "bias", "norm.weight"]);
  });
  it("knows what is below", () => {
    const blocks = tree.children.find(({ label }) => label === "blocks")!;
    expect(blocks.below).toEqual([1, 2, 3, 4, 5, 6]);
    expect(blocks.children[1]!.depth).toBe(2);
  });
  it("opens as far as there is room", () => {
    expect(firstDepth(tree, 3)).toBe(1);
    expect(firstDepth(tree, 100)).toBeGreaterThan(2);
  });
});

describe("the axis of histograms", () => {
  const axis = signedAxis([-2, -1, 0, 1, 2], [-1, -0.5, 0, 2, 4]);
  it("rises through zero", () => {
    const places = [-2, -1.5, -0.7, 0, 1, 1.5, 3].map(axis.place);
    expect([...places].sort((a, b) => a - b)).toEqual(places);
    expect(axis.place(0)).toBe(2.5);
  });
});

it("of buckets that share a pixel the worst is drawn", () => {
  const line = { values: Float32Array.of(1, -9, 3, 5, NaN), flags: Uint8Array.of(0, 0, 1, 0, 128) };
  expect(strongest(line, 0, 2)).toBe(1);
  expect(strongest(line, 0, 4)).toBe(2);
  expect(strongest(line, 4, 4)).toBe(4);
  expect(strongest(line, 3, 5)).toBe(3);
});

it("marks follow their run to another axis", () => {
  const marks = [{ step: 5, kind: "skip", text: "" }, { step: 0, kind: "skip", text: "" }, { step: 99, kind: "skip", text: "" }];
  expect(placed(marks, [1, 3, 7], [10, 30, 70]).map((mark) => mark.x)).toEqual([50, 70]);
});
