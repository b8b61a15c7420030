// Lines of colour over steps: one line a layer. The names stand beside it as a tree one can fold.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { flagText, MISSING } from "../data/frame";
import { colour as css, useTheme } from "../state/theme";
import { strongest, type Cells } from "./cells";
import { css as rgb, packed } from "./colours";
import { lookOf, type Mark } from "./marks";
import { grouped, number } from "./numbers";
import type { HeatPicture } from "./save";
import { niceSplits } from "./scale";
import { TintLegend } from "./TintLegend";
import { makeTint, type TintKind } from "./tint";
import { rows as treeRows, type Node } from "./tree";

export interface HeatmapProps {
  name: string;
  tree: Node;
  steps: ArrayLike<number>;
  /** sites × steps */
  values: ArrayLike<number>;
  flags: ArrayLike<number>;
  tint: TintKind;
  /** Each line in multiples of its own median. */
  relative?: boolean;
  isOpen(node: Node): boolean;
  onToggle(node: Node): void;
  onPick(node: Node, step: number): void;
  picked?: string | undefined;
  marks?: readonly Mark[];
  format?: (value: number) => string;
  onPicture?: (picture: (() => HeatPicture | null) | null) => void;
}

const ROW = 18;

export function Heatmap(props: HeatmapProps) {
  const { tree, steps, values, flags, relative, format = (value: number) => number(value, 4), marks = [] } = props;
  const theme = useTheme();
  const canvas = useRef<HTMLCanvasElement>(null);
  const plot = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [spot, setSpot] = useState<{ row: number; column: number; x: number } | null>(null);
  const shown = treeRows(tree, props.isOpen);
  const names = shown.map((node) => node.name + props.isOpen(node)).join();

  const thin = shown.map((node) => folds(node) && props.isOpen(node));
  const cells = useMemo(() => shown.map((node) => lineOf(node, steps.length, values, flags, relative)), [names, steps, values, flags, relative]);
  const tint = useMemo(() => {
    const all = new Float32Array(cells.length * steps.length);
    // Norms of whole modules would stretch the scale: it is that of the lines drawn in full.
    cells.forEach((line, at) => all.set(thin[at] ? line.values.map(() => NaN) : line.values, at * steps.length));
    return makeTint(relative ? "log" : props.tint, all, packed(css("zero")));
  }, [cells, props.tint, relative, theme]);

  useLayoutEffect(() => {
    const element = plot.current!;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  const first = steps[0] ?? 0;
  const last = steps[steps.length - 1] ?? 1;
  // A bucket reaches to the next one; the last one is as long as the one before it.
  const end = steps.length > 1 ? last + (last - steps[steps.length - 2]!) : last + 1;
  const columnAt = (x: number): number => {
    const step = first + (x / Math.max(width, 1)) * (end - first);
    let [low, high] = [0, steps.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps[middle]! <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  const xOf = (step: number): number => ((step - first) / Math.max(end - first, 1)) * width;

  useEffect(() => {
    const element = canvas.current!;
    const wide = Math.max(1, Math.round(width));
    element.width = wide;
    element.height = Math.max(1, shown.length * ROW);
    const context = element.getContext("2d")!;
    context.clearRect(0, 0, element.width, element.height);
    if (!steps.length) return;
    const image = context.createImageData(wide, 1);
    const pixels = new Uint32Array(image.data.buffer);
    const columns = Array.from({ length: wide + 1 }, (_, x) => columnAt(x));
    cells.forEach((line, row) => {
      for (let x = 0; x < wide; x++) {
        const at = strongest(line, columns[x]!, columns[x + 1]!);
        pixels[x] = tint.colour(line.values[at]!, line.flags[at]!);
      }
      // An unfolded module shows what is below it as a thin line.
      const from = thin[row] ? ROW - 6 : 0;
      if (from) {
        context.fillStyle = css("surface");
        context.fillRect(0, row * ROW, wide, ROW);
      }
      for (let y = from; y < ROW - 1; y++) context.putImageData(image, 0, row * ROW + y);
    });
  }, [cells, tint, width, steps]);

  const ticks = niceSplits(first, last, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger);
  const say = relative ? (value: number) => `${number(value, 2)}×` : format;
  props.onPicture?.(() => canvas.current && {
    canvas: canvas.current, row: ROW, names: shown, ticks: ticks.map((step) => ({ x: xOf(step), text: grouped(step) })),
    legend: { colours: Array.from({ length: 32 }, (_, i) => rgb(tint.table[i * 8]!)), low: say(tint.at(0)), high: say(tint.at(1)) },
  });

  const point = (event: PointerEvent | MouseEvent): { row: number; column: number; x: number } | null => {
    const box = canvas.current!.getBoundingClientRect();
    const x = event.clientX - box.left;
    const row = Math.floor((event.clientY - box.top) / ROW);
    if (row < 0 || row >= shown.length || !steps.length) return null;
    return { row, column: strongest(cells[row]!, columnAt(Math.floor(x)), columnAt(Math.floor(x) + 1)), x };
  };
  const move = (event: KeyboardEvent, row: number): void => {
    const node = shown[row]!;
    const focus = (to: number): void => {
      const list = (event.currentTarget as HTMLElement).closest("[role=tree]")!;
      list.querySelectorAll<HTMLElement>("[role=treeitem]")[to]?.focus();
    };
    const { key } = event;
    if (key === "ArrowDown") focus(Math.min(row + 1, shown.length - 1));
    else if (key === "ArrowUp") focus(Math.max(row - 1, 0));
    else if (key === "ArrowRight" && folds(node) && !props.isOpen(node)) props.onToggle(node);
    else if (key === "ArrowLeft" && folds(node) && props.isOpen(node)) props.onToggle(node);
    else if (key === "ArrowLeft" && node.parent) focus(Math.max(shown.indexOf(node.parent), 0));
    else if (key === "Enter") props.onPick(node, last);
    else if (key === " " && folds(node)) props.onToggle(node);
    else return;
    event.preventDefault();
  };

  const node = spot ? shown[spot.row] : undefined;
  const line = spot ? cells[spot.row] : undefined;
  return (
    <div class="heat">
      <TintLegend tint={tint} format={say} />
      <div class="heat-body" onPointerLeave={() => setSpot(null)}>
        <div class="heat-names" role="tree" aria-label={`${props.name}: layers`}>
          {shown.map((one, row) => (
            <div
              key={one.name}
              role="treeitem"
              tabIndex={row === 0 ? 0 : -1}
              aria-level={one.depth || 1}
              {...(folds(one) ? { "aria-expanded": props.isOpen(one) } : {})}
              aria-selected={props.picked === one.name}
              class={["heat-name", spot?.row === row && "lit", props.picked === one.name && "picked"].filter(Boolean).join(" ")}
              style={{ height: `${ROW}px`, paddingLeft: `${Math.max(0, one.depth - 1) * 11}px` }}
              title={`${one.name}${one.type && ` · ${one.type}`}`}
              onKeyDown={(event) => move(event, row)}
              onClick={() => (folds(one) ? props.onToggle(one) : props.onPick(one, last))}
              onPointerEnter={() => setSpot(null)}
            >
              <span class="twist" aria-hidden="true">{folds(one) ? (props.isOpen(one) ? "▾" : "▸") : ""}</span>
              <span class="heat-label">{one.label}</span>
            </div>
          ))}
        </div>
        <div class="heat-plot" ref={plot}>
          <canvas
            ref={canvas}
            class="heat-canvas"
            style={{ height: `${shown.length * ROW}px` }}
            role="img"
            aria-label={`${props.name}: ${shown.length} lines over steps ${grouped(first)} to ${grouped(last)}`}
            onPointerMove={(event) => setSpot(point(event))}
            onClick={(event) => {
              const at = point(event);
              if (at) props.onPick(shown[at.row]!, steps[at.column]!);
            }}
          />
          {marks.filter((mark) => mark.step >= first && mark.step <= end).map((mark, i) => (
            <span
              key={i}
              class={lookOf(mark.kind).line ? "heat-mark line" : "heat-mark"}
              title={`step ${grouped(mark.step)} · ${mark.text}`}
              style={{ left: `${xOf(mark.step)}px`, color: `var(--${lookOf(mark.kind).colour})`, ...(lookOf(mark.kind).line && { height: `${shown.length * ROW + 12}px` }) }}
            >
              {lookOf(mark.kind).glyph}
            </span>
          ))}
          {spot && node && line && (
            <>
              <span class="heat-cross" style={{ left: `${spot.x}px`, height: `${shown.length * ROW}px` }} />
              <span class="heat-row" style={{ top: `${spot.row * ROW}px`, height: `${ROW}px` }} />
              <div
                class={spot.x > width / 2 ? "tip before" : "tip"}
                role="status"
                style={{ left: `${spot.x + (spot.x > width / 2 ? -12 : 12)}px`, top: `${Math.max(0, (spot.row + 1) * ROW + 2)}px` }}
              >
                <div class="tip-head">{node.name}</div>
                <div class="tip-row">
                  <span class="tip-label">step {grouped(steps[spot.column]!)}</span>
                  <span class="tip-value">{cellText(line, spot.column, relative ? (value) => `${number(value, 3)}× its median` : format)}</span>
                </div>
                {node.children.length > 0 && (
                  <div class="tip-note">{node.site >= 0 ? "stored value of the whole module" : `largest of ${node.below.length} below`}</div>
                )}
                {node.type && <div class="tip-note">{node.type}</div>}
              </div>
            </>
          )}
          <div class="heat-axis" aria-hidden="true">
            {ticks.map((step) => (
              <span key={step} class={xOf(step) > width - 16 ? "end" : ""} style={{ left: `${xOf(step)}px` }}>{grouped(step)}</span>
            ))}
          </div>
        </div>
      </div>
    </div>
  );
}

/** Whether a line can be folded: the model as a whole can't. */
const folds = (node: Node): boolean => node.depth > 0 && node.children.length > 0;

function cellText(line: Cells, column: number, format: (value: number) => string): string {
  const flags = line.flags[column]!;
  if (flags & MISSING) return "not measured";
  const bad = flagText(flags);
  const value = line.values[column]!;
  return [bad, Number.isFinite(value) ? format(value) : ""].filter(Boolean).join(" · ");
}

/** What a line shows: its own column, or, without one, the largest magnitude below it. */
function lineOf(node: Node, count: number, values: ArrayLike<number>, flags: ArrayLike<number>, relative?: boolean): Cells {
  const out: Cells = { values: new Float32Array(count).fill(NaN), flags: new Uint8Array(count).fill(MISSING) };
  const sites = node.site >= 0 ? [node.site] : node.below;
  for (const site of sites)
    for (let i = 0; i < count; i++) {
      const flag = flags[site * count + i]!;
      if (flag & MISSING) continue;
      const value = values[site * count + i]!;
      out.flags[i] = (out.flags[i]! & MISSING ? 0 : out.flags[i]!) | flag;
      if (!(Math.abs(out.values[i]!) >= Math.abs(value)) && !Number.isNaN(value)) out.values[i] = value;
    }
  if (relative) {
    const sorted = Array.from(out.values, Math.abs).filter((value) => value > 0 && Number.isFinite(value)).sort((a, b) => a - b);
    const median = sorted[sorted.length >> 1];
    if (median) for (let i = 0; i < count; i++) out.values[i]! /= median;
  }
  return out;
}
