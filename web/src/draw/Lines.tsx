// Lines over steps: uPlot, with what a training needs: envelopes, zeros on log axes, NaN marks,
// events, limits and healthy bands.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { BAD, flagText } from "../data/frame";
import { colour as css, useTheme } from "../state/theme";
import { BAD_CSS } from "./colours";
import { lookOf, type Mark } from "./marks";
import { grouped, duration, number, short } from "./numbers";
import { linear, logarithmic, wantsLog, niceSplits, type YScale } from "./scale";

export interface Line {
  label: string;
  key: string;
  x: ArrayLike<number>;
  low: ArrayLike<number>;
  high: ArrayLike<number>;
  last: ArrayLike<number>;
  flags?: ArrayLike<number>;
  colour: string;
  dash?: number[];
  width?: number;
  /** A moving average of the line before it. */
  smooth?: boolean;
}

export interface Limit {
  value: number;
  label: string;
}

export interface LinesProps {
  name: string;
  lines: readonly Line[];
  format?: (value: number) => string;
  /** undefined: decided by the values. */
  log?: boolean | undefined;
  axis?: "step" | "time" | "tokens" | "samples";
  height?: number;
  marks?: readonly Mark[];
  /** The mark that this chart is about: drawn strongly. */
  spot?: { step: number; label: string } | undefined;
  limits?: readonly Limit[];
  band?: [number, number] | undefined;
  /** The axis reaches over all of the band; otherwise only as far as the values do. */
  wholeBand?: boolean;
  stacked?: boolean;
  fromZero?: boolean;
  range?: [number, number] | undefined;
  onRange?: ((range: [number, number] | null) => void) | undefined;
  onOpen?: ((key: string) => void) | undefined;
  group?: string;
  onPlot?: (plot: uPlot | null) => void;
}

/** More lines than this are drawn thin, without envelopes, and one at a time is lit. */
const MANY = 9;

export const axisText = (axis: string, value: number): string =>
  axis === "time" ? duration(value) : axis === "step" ? grouped(value) : short(value);

interface Tip {
  left: number;
  top: number;
  /** Left of the cursor, where there is more room. */
  before: boolean;
  head: string;
  rows: { colour: string; label: string; text: string }[];
  more: number;
  notes: string[];
}

export function Lines(props: LinesProps) {
  const { lines, height = 180, axis = "step", format = (value: number) => number(value, 4) } = props;
  const theme = useTheme();
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [tip, setTip] = useState<Tip | null>(null);
  const [focus, setFocus] = useState(false);

  const drawn = useMemo(() => prepare(props), [lines, props.log, props.limits, props.stacked, props.band?.[0], props.band?.[1], props.fromZero]);
  const state = useRef(drawn);
  state.current = drawn;

  const signature = JSON.stringify([
    lines.map((line) => [line.colour, line.dash, line.width]), drawn.shape, drawn.scale.log, theme, axis, height, props.group, props.stacked,
  ]);
  useEffect(() => {
    const element = host.current!;
    const width = Math.max(element.clientWidth, 120);
    const made = new uPlot(options(width, height, latest, state, axis, setTip), drawn.data, element);
    plot.current = made;
    latest.current.onPlot?.(made);
    const observer = new ResizeObserver(() => {
      const next = element.clientWidth;
      if (next > 0 && next !== made.width) made.setSize({ width: next, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
      latest.current.onPlot?.(null);
    };
  }, [signature]);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    plot.current?.setData(drawn.data, true);
  }, [drawn, props.range?.[0], props.range?.[1]]);
  useEffect(() => {
    plot.current?.redraw(false);
  }, [props.marks, props.spot?.step]);

  const move = (event: KeyboardEvent): void => {
    const made = plot.current;
    if (!made || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const xs = made.data[0];
    const { min, max } = made.scales["x"]!;
    const [from, to] = [made.valToIdx(min ?? xs[0]!), made.valToIdx(max ?? xs[xs.length - 1]!)];
    const at = made.cursor.idx ?? from;
    const far = event.shiftKey ? 10 : 1;
    const next =
      event.key === "Home" ? from : event.key === "End" ? to : Math.min(to, Math.max(from, at + (event.key === "ArrowLeft" ? -far : far)));
    setFocus(true);
    (made as Shown).byKey = true;
    made.setCursor({ left: made.valToPos(xs[next]!, "x"), top: made.over.clientHeight / 3 });
  };

  return (
    <div
      class="lines"
      role="img"
      tabIndex={0}
      aria-label={spoken(props, drawn.scale, format)}
      onKeyDown={move}
      onBlur={() => {
        if (focus) plot.current?.setCursor({ left: -10, top: -10 });
        setFocus(false);
      }}
    >
      <div ref={host} style={{ height: `${height}px` }} />
      {tip && (
        <div class={tip.before ? "tip before" : "tip"} role="status" style={{ left: `${tip.left}px`, top: `${tip.top}px` }}>
          <div class="tip-head">{tip.head}</div>
          {tip.rows.map((row) => (
            <div class="tip-row" key={row.label}>
              <span class="swatch" style={{ background: row.colour }} />
              <span class="tip-label">{row.label}</span>
              <span class="tip-value">{row.text}</span>
            </div>
          ))}
          {tip.more > 0 && <div class="tip-note">and {tip.more} more</div>}
          {tip.notes.map((note) => (
            <div class="tip-note" key={note}>{note}</div>
          ))}
        </div>
      )}
    </div>
  );
}

type Shown = uPlot & { byKey?: boolean };

interface Drawn {
  data: uPlot.AlignedData;
  scale: YScale;
  /** For each line: is there an envelope around it? */
  shape: boolean[];
  /** Which of the plot's series is which line. */
  owner: number[];
}

/** All finite values, for choosing an axis. */
export function* valuesOf(lines: readonly Line[]): Generator<number> {
  for (const { low, high, last } of lines)
    for (let i = 0; i < last.length; i++) {
      if (Number.isFinite(low[i]!)) yield low[i]!;
      if (Number.isFinite(high[i]!)) yield high[i]!;
      if (Number.isFinite(last[i]!)) yield last[i]!;
    }
}

function prepare({ lines: given, log, limits = [], stacked, band, wholeBand, fromZero }: LinesProps): Drawn {
  const lines = stacked ? stack(given) : given;
  const also = [...limits.map((limit) => limit.value), ...(wholeBand && band ? band : [])];
  const scale =
    !stacked && (log ?? wantsLog(valuesOf(lines)))
      ? logarithmic(valuesOf(lines), also)
      : linear(valuesOf(lines), also, stacked || fromZero);
  const many = lines.length >= MANY;
  const shape = lines.map(({ low, high }) => {
    if (many || stacked) return false;
    for (let i = 0; i < low.length; i++) if (low[i] !== high[i] && !Number.isNaN(low[i])) return true;
    return false;
  });
  const tables: (number | null)[][][] = [];
  const owner: number[] = [];
  lines.forEach((line, at) => {
    const put = (values: ArrayLike<number>): (number | null)[] => Array.from(values, (value) => scale.to(value));
    const table = [Array.from(line.x), put(line.last)];
    owner.push(at);
    if (shape[at]) {
      table.push(put(line.low), put(line.high));
      owner.push(at, at);
    }
    tables.push(table);
  });
  return { data: joined(tables), scale, shape, owner };
}

function joined(tables: (number | null)[][][]): uPlot.AlignedData {
  if (!tables.length) return [[]] as unknown as uPlot.AlignedData;
  const first = tables[0]![0]!;
  const alike = tables.every(([x]) => x!.length === first.length && x!.every((value, i) => value === first[i]));
  if (alike) return [first, ...tables.flatMap((table) => table.slice(1))] as uPlot.AlignedData;
  // 2: a null of one series is not a gap where only another series has a point.
  return uPlot.join(tables as uPlot.AlignedData[], tables.map((table) => table.map(() => 2 as const)));
}

export function stack(lines: readonly Line[]): Line[] {
  const length = lines[0]?.x.length ?? 0;
  const sum = new Float64Array(length);
  return lines.map((line) => {
    for (let i = 0; i < length; i++) sum[i]! += Number.isFinite(line.last[i]!) ? line.last[i]! : 0;
    const copy = Float64Array.from(sum);
    return { ...line, low: copy, high: copy, last: copy };
  });
}

function options(
  width: number,
  height: number,
  latest: { current: LinesProps },
  state: { current: Drawn },
  axis: string,
  setTip: (tip: Tip | null) => void,
): uPlot.Options {
  const { lines, stacked, group } = latest.current;
  const { shape } = state.current;
  const many = lines.length >= MANY;
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  // Several envelopes over each other must stay clear.
  const veil = ["30", "1e", "14"][Math.min(shape.filter(Boolean).length, 3) - 1] ?? "30";
  lines.forEach((line, at) => {
    const few = line.x.length <= 40 && !many && !stacked;
    series.push({
      stroke: line.colour,
      width: line.width ?? (many ? 1 : 1.6),
      ...(line.dash && { dash: line.dash }),
      points: { show: few, size: 4, fill: line.colour, stroke: line.colour },
      ...(stacked && { fill: `${line.colour}cc`, width: 0.5 }),
    });
    if (shape[at]) {
      // The ends of the buckets are lines too: a spike of one step must be seen.
      const edge: uPlot.Series = { stroke: `${line.colour.slice(0, 7)}80`, width: 0.8, points: { show: false } };
      series.push(edge, { ...edge });
      const last = series.length - 1;
      bands.push({ series: [last, last - 1], fill: `${line.colour.slice(0, 7)}${veil}` });
    }
  });
  if (stacked)
    for (let i = series.length - 1; i > 1; i--) bands.push({ series: [i, i - 1], fill: `${lines[i - 1]!.colour}cc` });
  const ink = css("ink-3");
  const grid = { stroke: css("grid"), width: 1 };
  const font = "11px ui-sans-serif, system-ui, sans-serif";
  let over = false;
  const format = (value: number): string => (latest.current.format ?? ((v) => number(v, 3)))(value);
  return {
    width,
    height,
    series,
    bands,
    legend: { show: false },
    padding: [14, 12, 0, 0],
    focus: { alpha: many ? 0.18 : 1 },
    scales: {
      x: {
        time: false,
        range: (_, low, high) => {
          const wanted = latest.current.range;
          if (wanted) return wanted;
          return low === null || low === undefined || low === high ? [(low ?? 0) - 1, (high ?? 0) + 1] : [low, high];
        },
      },
      y: { range: () => state.current.scale.range },
    },
    axes: [
      {
        stroke: ink, font, grid: { show: false }, ticks: { stroke: css("grid"), size: 4 }, size: 20, gap: 3,
        splits: (u, _i, low, high) => niceSplits(low, high, Math.max(2, Math.floor(u.width / 85))),
        values: (_, splits) => splits.map((value) => axisText(axis, value)),
      },
      {
        stroke: ink, font, grid, ticks: { show: false }, gap: 6,
        size: (_, values) => Math.max(34, ...(values ?? []).map((text) => (text?.length ?? 0) * 6.2 + 12)),
        splits: (_u, _i, low, high) => state.current.scale.splits(low, high),
        values: (_, splits) => splits.map((value) => state.current.scale.text(value, format)),
      },
    ],
    cursor: {
      drag: { x: true, y: false },
      focus: { prox: many ? 24 : -1 },
      points: { size: 6 },
      ...(group && { sync: { key: group, scales: ["x", null], setSeries: false } }),
      bind: {
        dblclick: () => () => {
          latest.current.onRange?.(null);
          return null;
        },
      },
    },
    hooks: {
      init: [
        (u) => {
          u.over.addEventListener("mouseenter", () => (over = true));
          u.over.addEventListener("mouseleave", () => {
            over = false;
            setTip(null);
          });
          let pressed = 0;
          u.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
          u.over.addEventListener("click", (event) => {
            if (Math.abs(event.clientX - pressed) > 3) return;
            const key = closest(u, state.current, latest.current.lines);
            if (key) latest.current.onOpen?.(key);
          });
        },
      ],
      setSelect: [
        (u) => {
          const { left, width: wide } = u.select;
          if (wide > 4) {
            const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + wide, "x")];
            latest.current.onRange?.(axis === "step" ? [Math.floor(from), Math.ceil(to)] : [from, to]);
          }
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      setCursor: [
        (u) => {
          if (!over && !(u as Shown).byKey) return;
          setTip(tipOf(u, state.current, latest.current, axis));
          if (u.cursor.left! < 0) (u as Shown).byKey = false;
        },
      ],
      drawAxes: [(u) => drawBand(u, state.current.scale, latest.current)],
      draw: [(u) => drawNotes(u, state.current.scale, latest.current)],
    },
  };
}

function closest(u: uPlot, { owner }: Drawn, lines: readonly Line[]): string | undefined {
  const { idx, top } = u.cursor;
  if (idx === null || idx === undefined) return undefined;
  let best: { far: number; key: string } | undefined;
  owner.forEach((at, i) => {
    const value = u.data[i + 1]![idx];
    if (value === null || value === undefined) return;
    const far = Math.abs(u.valToPos(value, "y") - top!);
    if (!best || far < best.far) best = { far, key: lines[at]!.key };
  });
  return best?.key;
}

function at(line: Line, x: number): number {
  let [from, to] = [0, line.x.length - 1];
  while (from < to) {
    const middle = (from + to + 1) >> 1;
    if (line.x[middle]! <= x) from = middle;
    else to = middle - 1;
  }
  return from;
}

function tipOf(u: uPlot, { scale }: Drawn, props: LinesProps, axis: string): Tip | null {
  const { idx, left, top } = u.cursor;
  if (idx === null || idx === undefined || left! < 0) return null;
  const x = u.data[0][idx];
  if (x === undefined) return null;
  const format = props.format ?? ((value: number) => number(value, 4));
  const rows = props.lines
    .filter((line) => line.x.length && line.x[0]! <= x)
    .map((line) => {
      const i = at(line, x);
      const [low, high, last, bad] = [line.low[i]!, line.high[i]!, line.last[i]!, flagText((line.flags?.[i] ?? 0) & BAD)];
      let text = Number.isFinite(last) || !bad ? format(last) : "";
      if (low !== high && Number.isFinite(low) && !props.stacked) text += ` (${format(low)} … ${format(high)})`;
      if (bad) text = `${bad}${text && ` · ${text}`}`;
      const place = scale.to(last);
      const far = props.stacked || place === null ? 0 : Math.abs(u.valToPos(place, "y") - top!);
      return { colour: line.colour, label: line.label, text, far };
    });
  const most = 8;
  if (rows.length > most) rows.sort((a, b) => a.far - b.far);
  const notes = (props.marks ?? [])
    .filter((mark) => Math.abs(u.valToPos(mark.x ?? mark.step, "x") - left!) < 6)
    .slice(0, 4)
    .map((mark) => `${lookOf(mark.kind).glyph} ${mark.text}`);
  const right = left! > u.over.clientWidth / 2;
  return {
    left: u.over.offsetLeft + left! + (right ? -12 : 12),
    top: u.over.offsetTop + 4,
    head: axis === "step" ? `step ${grouped(x)}` : axis === "time" ? duration(x) : `${short(x)} ${axis}`,
    rows: props.stacked ? rows.slice(0, 12).reverse() : rows.slice(0, most),
    more: Math.max(0, rows.length - (props.stacked ? 12 : most)),
    notes,
    before: right,
  };
}

function drawBand(u: uPlot, scale: YScale, { band }: LinesProps): void {
  if (!band) return;
  const [low, high] = band.map((value) => scale.to(value));
  if (low === null || high === null) return;
  const { ctx, bbox } = u;
  const inside = (y: number): number => Math.min(bbox.top + bbox.height, Math.max(bbox.top, y));
  const [bottom, top] = [inside(u.valToPos(low!, "y", true)), inside(u.valToPos(high!, "y", true))];
  ctx.save();
  ctx.fillStyle = css("band");
  ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
  ctx.restore();
}

function drawNotes(u: uPlot, scale: YScale, { marks = [], limits = [], spot, lines }: LinesProps): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  const inside = (x: number): boolean => x >= bbox.left - 1 && x <= bbox.left + bbox.width + 1;
  ctx.save();
  ctx.font = `${10 * ratio}px ui-sans-serif, system-ui, sans-serif`;
  ctx.textAlign = "center";
  const crowded = marks.length > 60;
  for (const mark of marks) {
    const x = u.valToPos(mark.x ?? mark.step, "x", true);
    if (!inside(x)) continue;
    const look = lookOf(mark.kind);
    ctx.fillStyle = ctx.strokeStyle = css(look.colour);
    ctx.globalAlpha = mark.kind.startsWith("finding") ? 0.8 : 0.35;
    ctx.lineWidth = ratio;
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    if (look.line && (!crowded || mark.kind.startsWith("finding"))) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.globalAlpha = 0.9;
    ctx.fillText(look.glyph, x, bbox.top - 3 * ratio);
  }
  ctx.globalAlpha = 1;
  for (const limit of limits) {
    const place = scale.to(limit.value);
    if (place === null) continue;
    const y = u.valToPos(place, "y", true);
    ctx.strokeStyle = ctx.fillStyle = css("error");
    ctx.lineWidth = 1.25 * ratio;
    ctx.setLineDash([6 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.textAlign = "left";
    ctx.fillText(limit.label, bbox.left + 4 * ratio, y - 4 * ratio < bbox.top + 8 * ratio ? y + 11 * ratio : y - 4 * ratio);
  }
  if (spot) {
    const x = u.valToPos(spot.step, "x", true);
    if (inside(x)) {
      ctx.setLineDash([]);
      ctx.strokeStyle = ctx.fillStyle = css("accent");
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const line = lines[0];
      if (line?.x.length) {
        const place = scale.to(line.last[at(line, spot.step)]!);
        if (place !== null) {
          ctx.beginPath();
          ctx.arc(x, u.valToPos(place, "y", true), 4.5 * ratio, 0, 7);
          ctx.fillStyle = css("surface");
          ctx.fill();
          ctx.stroke();
          ctx.fillStyle = css("accent");
        }
      }
      const right = x > bbox.left + bbox.width - 80 * ratio;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(spot.label, x + (right ? -6 : 6) * ratio, bbox.top + 10 * ratio);
    }
  }
  ctx.setLineDash([]);
  ctx.fillStyle = BAD_CSS;
  for (const { x: xs, flags } of lines) {
    if (!flags) continue;
    for (let i = 0; i < flags.length; i++)
      if (flags[i]! & BAD) {
        const x = u.valToPos(xs[i]!, "x", true);
        if (!inside(x)) continue;
        const y = bbox.top + bbox.height;
        ctx.beginPath();
        ctx.moveTo(x, y - 9 * ratio);
        ctx.lineTo(x - 4 * ratio, y);
        ctx.lineTo(x + 4 * ratio, y);
        ctx.fill();
      }
  }
  ctx.restore();
}

/** The chart in one sentence, for those who don't see it. */
function spoken({ name, lines, limits = [] }: LinesProps, scale: YScale, format: (value: number) => string): string {
  const parts = lines.slice(0, 4).map((line) => {
    let last = line.last.length - 1;
    while (last > 0 && !Number.isFinite(line.last[last]!)) last -= 1;
    const value = line.last[last];
    return `${line.label} ${value === undefined ? "without values" : `last ${format(value)}`}`;
  });
  const more = lines.length > 4 ? `, and ${lines.length - 4} more` : "";
  const bounds = limits.map((limit) => `; limit ${format(limit.value)}`).join("");
  return `${name}, ${scale.log ? "logarithmic, " : ""}${parts.join(", ")}${more}${bounds}. Arrow keys read values.`;
}
