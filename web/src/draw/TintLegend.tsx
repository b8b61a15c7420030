// The colour bar: what a colour stands for, and the colours for zero and NaN.

import { useEffect, useRef } from "preact/hooks";
import { number } from "./numbers";
import { logSplits, niceSplits } from "./scale";
import type { Tint } from "./tint";

const WIDTH = 180;

export function TintLegend({ tint, format = (value) => number(value, 3) }: { tint: Tint; format?: (value: number) => string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = canvas.current!.getContext("2d")!;
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(tint.table);
    context.putImageData(image, 0, 0);
  }, [tint.table]);
  const places: [number, number][] =
    tint.kind === "linear"
      ? atLeastTwo(niceSplits(tint.low, tint.high, 4), tint).map((value) => [(value - tint.low) / (tint.high - tint.low), value])
      : tint.kind === "log"
        ? thin(logSplits(tint.low, tint.high)).map((place) => [(place - tint.low) / (tint.high - tint.low), 10 ** place])
        : [[0, tint.at(0)], [0.5, 0], [1, tint.at(1)]];
  return (
    <div class="tint" role="img" aria-label={`Colour scale from ${format(tint.at(0))} to ${format(tint.at(1))}`}>
      <div class="tint-scale" style={{ width: `${WIDTH}px` }}>
        <canvas ref={canvas} width={256} height={1} />
        {places.map(([share, value]) => (
          <span key={share} style={{ left: `${share * 100}%` }}>{tint.kind === "linear" ? format(value) : number(value, 2)}</span>
        ))}
      </div>
      {tint.kind === "log" && tint.zero && <span class="tint-key"><i class="zero" /> zero</span>}
      <span class="tint-key"><i class="bad" /> NaN, Inf</span>
    </div>
  );
}

/** One number alone is no scale. */
const atLeastTwo = (places: number[], { low, high }: Tint): number[] => (places.length > 1 ? places : [low, high]);
const thin = (places: number[]): number[] => (places.length > 4 ? places.filter((_, i) => i % 2 === 0) : places);
