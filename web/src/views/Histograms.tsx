// The distribution of one tensor over time, three ways, all on the same signed log2 axis.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useFrame } from "../data/ask";
import type { HistogramHeader } from "../data/types";
import { SEQUENTIAL } from "../draw/colours";
import { lookOf, type Mark } from "../draw/marks";
import { grouped, number, percent } from "../draw/numbers";
import { saveCanvas } from "../draw/save";
import { niceSplits } from "../draw/scale";
import { signedAxis, spaced } from "../draw/signed";
import { Card } from "../parts/Card";
import { useRange } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useVisible } from "../parts/visible";
import { useCurrent } from "../state/current";
import { colour as css, useTheme } from "../state/theme";

export type Mode = "heat" | "ridge" | "fan";
const NAMES: Record<Mode, string> = { heat: "Distribution over time", ridge: "Distributions, newest in front", fan: "Percentiles" };
const LEFT = 62;
const BOTTOM = 22;
/** Room for the marks. */
const TOP = 14;
/** Percentile pairs of the fan, the widest first; positions in the header's list. */
const FAN: readonly (readonly [number, number, number])[] = [[0, 8, 0.1], [1, 7, 0.14], [2, 6, 0.2], [3, 5, 0.3]];

export function Histograms({ run, kind, site, mode, height = 300, title }: { run: string; kind: string; site: string; mode: Mode; height?: number; title?: string }) {
  const theme = useTheme();
  const current = useCurrent();
  const seen = current.run.id === run ? current.marks : NO_MARKS;
  const [element, visible] = useVisible<HTMLDivElement>();
  const [range] = useRange();
  const { value, error, loading } = useFrame<HistogramHeader>(run, "histograms", { kind, site, points: 300, ...(range && { start: range[0], stop: range[1] + 1 }) }, visible);
  const canvas = useRef<HTMLCanvasElement>(null);
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [spot, setSpot] = useState<{ x: number; y: number } | null>(null);
  const there = !!value && value.arrays["steps"]!.length > 0;
  useEffect(() => {
    if (!host.current) return;
    const observer = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 0));
    observer.observe(host.current);
    setWidth(host.current.clientWidth);
    return () => observer.disconnect();
  }, [there]);

  const shape = useMemo(() => {
    if (!there) return null;
    const { steps, percentiles } = value.arrays as Record<string, Float32Array>;
    const { low, high, counts } = withoutDust(value.arrays as Record<string, Float32Array>);
    const bins = low.length;
    const shares = new Float32Array(counts.length);
    let most = 0;
    for (let i = 0; i < steps!.length; i++) {
      let total = 0;
      for (let b = 0; b < bins; b++) total += counts[i * bins + b]!;
      for (let b = 0; b < bins; b++) {
        const share = total ? counts[i * bins + b]! / total : 0;
        shares[i * bins + b] = share;
        // Exact zeros may be most of all; they do not set the scale.
        if (share > most && low[b] !== high[b]) most = share;
      }
    }
    return { axis: signedAxis(low, high), low, high, steps: steps!, shares, most: most || 1, percentiles: percentiles!, bins };
  }, [value, there]);

  const plotWidth = Math.max(10, width - LEFT - 18);
  const plotHeight = height - BOTTOM - TOP;
  const first = shape?.steps[0] ?? 0;
  const last = shape?.steps[shape.steps.length - 1] ?? 1;
  const end = endOf(shape?.steps ?? [], mode);
  const xOf = (step: number): number => LEFT + ((step - first) / (end - first || 1)) * plotWidth;
  const y = (place: number): number => TOP + (1 - place / (shape?.bins ?? 1)) * plotHeight;

  useEffect(() => {
    if (!shape || !canvas.current || width < 20) return;
    const ratio = devicePixelRatio;
    const element = canvas.current;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    const context = element.getContext("2d")!;
    context.scale(ratio, ratio);
    context.clearRect(0, 0, width, height);
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    if (mode === "ridge") drawRidge(context, shape, plotWidth, plotHeight);
    else {
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.lineWidth = 1;
      for (const tick of spaced(shape.axis.ticks, (shape.bins * 15) / plotHeight)) {
        context.strokeStyle = css("grid");
        context.fillStyle = css("ink-3");
        context.fillText(tick.text, LEFT - 8, y(tick.place));
        context.beginPath();
        context.moveTo(LEFT, y(tick.place));
        context.lineTo(LEFT + plotWidth, y(tick.place));
        context.stroke();
      }
      if (mode === "heat") drawHeat(context, shape, plotWidth, plotHeight);
      else drawFan(context, shape, plotWidth, y);
      context.textAlign = "center";
      context.textBaseline = "alphabetic";
      context.fillStyle = css("ink-3");
      for (const step of niceSplits(first, last, Math.max(2, Math.floor(width / 120))))
        context.fillText(grouped(step), xOf(step), height - 6);
      drawMarks(context, seen.filter(({ step }) => step >= first && step <= end), xOf, plotHeight);
    }
  }, [shape, mode, width, height, theme, seen]);

  const name = title ?? NAMES[mode];
  const tip = shape && spot && mode !== "ridge" ? readOut(shape, spot, plotWidth, plotHeight, mode) : null;
  return (
    <div ref={element} class="chart">
      <Card title={name} note={mode === "heat" ? "share of elements in each bin" : mode === "fan" ? "min, p1, p5, p25, median, p75, p95, p99, max" : undefined}
        save={there ? saveCanvas(() => canvas.current, `${kind} ${site}`) : undefined}>
        {error ? <Problem text={error} /> : !there ? (loading || !visible || !value ? <Loading what="Loading histograms" height={height} asleep={!visible} /> : <Empty title="No histograms yet" />) : (
          <div class="histogram" ref={host} onPointerLeave={() => setSpot(null)}>
            <canvas
              ref={canvas} style={{ width: "100%", height: `${height}px` }} role="img" data-mode={mode}
              aria-label={`${name} of ${kind} ${site}: steps ${grouped(first)} to ${grouped(last)}, median now ${number(shape!.percentiles[(shape!.steps.length - 1) * 9 + 4]!, 3)}`}
              onPointerMove={(event) => {
                const box = event.currentTarget.getBoundingClientRect();
                setSpot({ x: event.clientX - box.left, y: event.clientY - box.top });
              }}
            />
            {tip && (
              <div class={spot!.x > width / 2 ? "tip before" : "tip"} role="status" style={{ left: `${spot!.x + (spot!.x > width / 2 ? -12 : 12)}px`, top: `${Math.min(spot!.y, height - 60)}px` }}>
                <div class="tip-head">{tip.head}</div>
                {tip.rows.map(([label, text]) => <div class="tip-row" key={label}><span class="tip-label">{label}</span><span class="tip-value">{text}</span></div>)}
              </div>
            )}
          </div>
        )}
      </Card>
    </div>
  );
}

/** Below this share of the elements, in every histogram, small values are dust. */
const DUST = 0.002;

/** Bins of tiny values that hold next to nothing, on either side of zero, become one bin each. */
export function withoutDust({ low, high, counts, steps }: Record<string, Float32Array>): { low: Float64Array; high: Float64Array; counts: Float32Array } {
  const bins = low!.length;
  const rows = steps!.length;
  const largest = new Float64Array(bins);
  for (let i = 0; i < rows; i++) {
    let total = 0;
    for (let b = 0; b < bins; b++) total += counts![i * bins + b]!;
    for (let b = 0; b < bins; b++) largest[b] = Math.max(largest[b]!, total ? counts![i * bins + b]! / total : 0);
  }
  // The magnitude below which both sides hold only dust.
  let limit = Infinity;
  for (let b = 0; b < bins; b++) {
    const size = Math.min(Math.abs(low![b]!), Math.abs(high![b]!));
    if (low![b] !== high![b] && largest[b]! >= DUST) limit = Math.min(limit, size);
  }
  const groups: number[][] = [];
  let [before, after]: [number[] | null, number[] | null] = [null, null];
  for (let b = 0; b < bins; b++) {
    const dust = low![b] !== high![b] && Number.isFinite(limit) && Math.max(Math.abs(low![b]!), Math.abs(high![b]!)) <= limit;
    if (!dust) groups.push([b]);
    else if (high![b]! <= 0) before ? before.push(b) : groups.push((before = [b]));
    else after ? after.push(b) : groups.push((after = [b]));
  }
  const out = {
    low: Float64Array.from(groups, (group) => low![group[0]!]!),
    high: Float64Array.from(groups, (group) => high![group[group.length - 1]!]!),
    counts: new Float32Array(rows * groups.length),
  };
  for (let i = 0; i < rows; i++)
    groups.forEach((group, g) => {
      for (const b of group) out.counts[i * groups.length + g]! += counts![i * bins + b]!;
    });
  return out;
}

interface Shape {
  axis: ReturnType<typeof signedAxis>;
  low: ArrayLike<number>;
  high: ArrayLike<number>;
  steps: ArrayLike<number>;
  shares: Float32Array;
  most: number;
  percentiles: ArrayLike<number>;
  bins: number;
}

/** Where the axis ends: a bucket of the heatmap reaches to the next one, a line ends at the last. */
function endOf(steps: ArrayLike<number>, mode: Mode): number {
  const last = steps[steps.length - 1] ?? 1;
  if (mode !== "heat") return last;
  return steps.length > 1 ? last + (last - steps[steps.length - 2]!) : last + 1;
}

const NO_MARKS: readonly Mark[] = [];

function drawMarks(context: CanvasRenderingContext2D, marks: readonly Mark[], x: (step: number) => number, height: number): void {
  context.font = "10px ui-sans-serif, system-ui, sans-serif";
  context.setLineDash([2, 3]);
  for (const { step, kind } of marks) {
    const look = lookOf(kind);
    context.fillStyle = context.strokeStyle = css(look.colour);
    if (look.line) {
      context.beginPath();
      context.moveTo(x(step), TOP);
      context.lineTo(x(step), TOP + height);
      context.stroke();
    }
    context.fillText(look.glyph, x(step), TOP - 4);
  }
  context.setLineDash([]);
}

function drawHeat(context: CanvasRenderingContext2D, { steps, shares, most, bins }: Shape, width: number, height: number): void {
  const count = steps.length;
  const image = new OffscreenCanvas(count, bins);
  const inner = image.getContext("2d")!;
  const data = inner.createImageData(count, bins);
  const pixels = new Uint32Array(data.data.buffer);
  for (let i = 0; i < count; i++)
    for (let b = 0; b < bins; b++) {
      const share = shares[i * bins + b]!;
      // Square root: the tails, where trouble begins, stay visible beside the middle.
      if (share > 0) pixels[(bins - 1 - b) * count + i] = SEQUENTIAL[Math.min(255, Math.round(Math.sqrt(share / most) * 255))]!;
    }
  inner.putImageData(data, 0, 0);
  context.imageSmoothingEnabled = false;
  // Buckets need not be equally long: each is drawn from its step to the next.
  const [first, end] = [steps[0]!, endOf(steps, "heat")];
  for (let i = 0; i < count; i++) {
    const from = LEFT + Math.round(((steps[i]! - first) / (end - first)) * width);
    const to = LEFT + Math.round((((i + 1 < count ? steps[i + 1]! : end) - first) / (end - first)) * width);
    context.drawImage(image, i, 0, 1, bins, from, TOP, Math.max(1, to - from), height);
  }
}

function drawFan(context: CanvasRenderingContext2D, { steps, percentiles, axis }: Shape, width: number, y: (place: number) => number): void {
  const count = steps.length;
  const [first, last] = [steps[0]!, steps[count - 1]!];
  const x = (i: number): number => LEFT + ((steps[i]! - first) / (last - first || 1)) * width;
  const line = (which: number, back: boolean): void => {
    for (let n = 0; n < count; n++) {
      const i = back ? count - 1 - n : n;
      const place = axis.place(percentiles[i * 9 + which]!);
      if (Number.isNaN(place)) continue;
      context.lineTo(x(i), y(place));
    }
  };
  context.fillStyle = context.strokeStyle = css("accent");
  for (const [from, to, alpha] of FAN) {
    context.globalAlpha = alpha;
    context.beginPath();
    line(from, false);
    line(to, true);
    context.fill();
  }
  context.globalAlpha = 1;
  context.lineWidth = 1.6;
  context.beginPath();
  line(4, false);
  context.stroke();
}

function drawRidge(context: CanvasRenderingContext2D, { steps, shares, most, bins, axis }: Shape, width: number, height: number): void {
  const shown = Math.min(steps.length, 28);
  const picks = Array.from({ length: shown }, (_, i) => Math.round((i / Math.max(shown - 1, 1)) * (steps.length - 1)));
  const gap = height / (shown + 4);
  const tall = gap * 5;
  context.lineWidth = 1;
  context.textAlign = "center";
  for (const tick of spaced(axis.ticks, (bins * 58) / width)) {
    const x = LEFT + (tick.place / bins) * width;
    context.strokeStyle = css("grid");
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, height + TOP);
    context.stroke();
    context.fillStyle = css("ink-3");
    context.fillText(tick.text, x, height + 20);
  }
  context.textAlign = "right";
  picks.forEach((i, at) => {
    const base = TOP + tall + at * gap;
    context.beginPath();
    context.moveTo(LEFT, base);
    for (let b = 0; b < bins; b++) context.lineTo(LEFT + ((b + 0.5) / bins) * width, base - Math.min(1, Math.sqrt(shares[i * bins + b]! / most)) * tall * 0.92);
    context.lineTo(LEFT + width, base);
    context.globalAlpha = 0.88;
    context.fillStyle = css("surface");
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = `color-mix(in oklab, ${css("accent")} ${Math.round(25 + (75 * at) / Math.max(shown - 1, 1))}%, ${css("ink-3")})`;
    context.lineWidth = at === shown - 1 ? 1.8 : 1;
    context.stroke();
    if ((at % Math.ceil(shown / 8) === 0 && shown - 1 - at > shown / 16) || at === shown - 1) {
      context.fillStyle = css("ink-3");
      context.fillText(grouped(steps[i]!), LEFT - 8, base);
    }
  });
}

function readOut({ steps, low, high, shares, percentiles, bins }: Shape, spot: { x: number; y: number }, width: number, height: number, mode: Mode): { head: string; rows: [string, string][] } | null {
  const share = (spot.x - LEFT) / width;
  if (share < 0 || share > 1) return null;
  const want = steps[0]! + share * (endOf(steps, mode) - steps[0]!);
  let i = 0;
  while (i + 1 < steps.length && steps[i + 1]! <= want) i += 1;
  const head = `step ${grouped(steps[i]!)}`;
  if (mode === "fan") {
    const names = ["min", "p1", "p5", "p25", "median", "p75", "p95", "p99", "max"];
    return { head, rows: names.map((name, p): [string, string] => [name, number(percentiles[i * 9 + p]!, 3)]).reverse() };
  }
  const bin = Math.floor((1 - (spot.y - TOP) / height) * bins);
  if (bin < 0 || bin >= bins) return null;
  const inside = low[bin] === high[bin] ? "exactly 0" : `${number(low[bin]!, 2)} … ${number(high[bin]!, 2)}`;
  const amount = shares[i * bins + bin]!;
  return { head, rows: [[inside, amount > 0 && amount < 0.01 ? `${number(amount * 100, 2)} %` : percent(amount)], ["median", number(percentiles[i * 9 + 4]!, 3)]] };
}
