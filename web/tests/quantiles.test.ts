import { expect, test } from "vitest";
import { middle } from "../src/draw/quantiles";

test("the middle of many lines", () => {
  // Five lines of two steps; one value is missing, one line is left out.
  const values = [1, 10, 2, 20, 3, NaN, 4, 40, 999, 999];
  const found = middle(values, [0, 1, 2, 3], 2, 0.5);
  expect([...found.median]).toEqual([2.5, 20]);
  expect([...found.low]).toEqual([1.75, 15]);
  expect([...found.high]).toEqual([3.25, 30]);
});

test("without a value there is none", () => {
  expect([...middle([NaN, NaN], [0, 1], 1).median]).toEqual([NaN]);
});
