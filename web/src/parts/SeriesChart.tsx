// One chart of one or several columns, of one or several runs: asks for its own data while it is seen.

import { useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import type { Frame } from "../data/frame";
import { useFrames } from "../data/frames";
import type { Axis, SeriesHeader } from "../data/types";
import { lineColour } from "../draw/palette";
import { Lines, valuesOf, type Limit, type Line } from "../draw/Lines";
import { placed, type Mark } from "../draw/marks";
import { labelOf, titleOf, unitOf } from "../draw/numbers";
import { smoothedValues } from "../draw/smooth";
import { wantsLog } from "../draw/scale";
import { saveLinesSvg, savePng } from "../draw/save";
import { set, usePlace } from "../state/place";
import { useTheme } from "../state/theme";
import { Card } from "./Card";
import { Empty, Loading, Problem } from "./states";
import { useVisible } from "./visible";

export interface ChartRun {
  id: string;
  title: string;
  colour: string;
}

/** Each long line once more as its moving average (weight `share` on the past), the line itself faint. */
export function smoothed(lines: readonly Line[], share: number): Line[] {
  if (!(share > 0)) return [...lines];
  return lines.flatMap((line) => {
    if (line.x.length < 30) return [line];
    const out = smoothedValues(line.last, share);
    const { flags: _flags, ...rest } = line;
    return [
      { ...line, colour: `${line.colour}55`, width: 1 },
      { ...rest, label: `${line.label}, smoothed`, low: out, high: out, last: out, smooth: true },
    ];
  });
}

export interface SeriesChartProps {
  runs: readonly ChartRun[];
  keys: readonly string[];
  title?: string;
  labels?: Readonly<Record<string, string>>;
  axis?: Axis;
  height?: number;
  marks?: readonly Mark[];
  limits?: readonly Limit[];
  band?: [number, number] | undefined;
  wholeBand?: boolean;
  spot?: { step: number; label: string } | undefined;
  log?: boolean;
  stacked?: boolean;
  fromZero?: boolean;
  pin?: boolean;
  note?: string;
  plain?: boolean;
  steady?: boolean;
  /** The runs are named elsewhere. */
  unnamed?: boolean;
}

export function linesOf(frames: readonly (Frame<SeriesHeader> | undefined)[], runs: readonly ChartRun[], labels: Readonly<Record<string, string>> = {}): Line[] {
  const lines: Line[] = [];
  frames.forEach((frame, at) => {
    if (!frame) return;
    const run = runs[at]!;
    frame.header.series.forEach(({ key, arrays }, index) => {
      if (arrays === undefined) return;
      const take = (name: string): ArrayLike<number> => frame.arrays[`${arrays}.${name}`]!;
      const label = labels[key] ?? key;
      lines.push({
        key,
        label: runs.length > 1 ? (frame.header.series.length > 1 ? `${run.title} · ${label}` : run.title) : label,
        x: frame.arrays[`${arrays}.x`] ?? take("steps"),
        low: take("low"), high: take("high"), last: take("last"), flags: take("flags"),
        colour: runs.length > 1 ? run.colour : lineColour(index),
        ...(runs.length > 1 && index > 0 && { dash: [4, 3] }),
      });
    });
  });
  return lines;
}

/** The steps that were zoomed to, kept in the URL. */
export function useRange(): [[number, number] | undefined, (range: [number, number] | null) => void] {
  const { settings } = usePlace();
  const [from, to] = (settings["x"] ?? "").split(":").map(Number);
  const range = useMemo<[number, number] | undefined>(() => (from !== undefined && to !== undefined && to > from ? [from, to] : undefined), [from, to]);
  return [range, (next) => set({ x: next ? `${next[0]}:${next[1]}` : "" }, true)];
}

export const openSeries = (key: string): void => set({ open: key }, true);

export function SeriesChart(props: SeriesChartProps) {
  const { runs, keys, axis = "step", labels, height = 180 } = props;
  const [element, visible] = useVisible<HTMLDivElement>();
  const [zoom, setZoom] = useRange();
  const [local, setLocal] = useState<[number, number] | undefined>();
  const byStep = axis === "step";
  const { frames, errors, loading } = useFrames<SeriesHeader>(
    runs.map((run) => run.id), "series",
    { key: keys, points: 600, x: byStep ? undefined : axis, ...(byStep && zoom && { start: zoom[0], stop: zoom[1] + 1 }) },
    visible && keys.length > 0,
  );
  const theme = useTheme();
  const { settings } = usePlace();
  const smooth = props.stacked || props.steady || props.limits?.length ? 0 : Number(settings["smooth"] ?? 0);
  const lines = useMemo(
    () => smoothed(linesOf(frames, runs, labels), smooth),
    [...frames, runs.map((run) => run.colour + run.title).join(), labels, theme, smooth],
  );
  const marks = useMemo(() => {
    if (byStep || !props.marks?.length) return props.marks ?? [];
    // The marks are those of the first run.
    const frame = frames[0];
    const at = frame?.header.series.find((one) => one.arrays !== undefined)?.arrays;
    return at === undefined ? [] : placed(props.marks, frame!.arrays[`${at}.steps`]!, frame!.arrays[`${at}.x`] ?? []);
  }, [frames[0], byStep, props.marks]);
  const [log, setLog] = useState<boolean | undefined>(props.log);
  const isLog = useMemo(() => log ?? wantsLog(valuesOf(lines)), [lines, log]);
  const plot = useRef<uPlot | null>(null);
  const name = props.title ?? (keys.length === 1 ? titleOf(keys[0]!) : keys.join(", "));
  const label: ReturnType<typeof labelOf> = !props.title && keys.length === 1 ? labelOf(keys[0]!) : { title: name };
  const format = unitOf(keys[0] ?? "");
  const error = errors.find(Boolean) ?? frames.flatMap((frame) => frame?.header.series ?? []).find((one) => one.error)?.error;
  const legend = props.unnamed && keys.length === 1 ? null : runs.length > 1 && keys.length > 1 ? (
    <ul class="legend" aria-label="Lines">
      {runs.map((run) => <li key={run.id}><span class="swatch" style={{ background: run.colour }} />{run.title}</li>)}
      <li class="quiet">dashed: {labels?.[keys[1]!] ?? titleOf(keys[1]!)}</li>
    </ul>
  ) : lines.filter((line) => !line.smooth).length > 1 && lines.length <= 12 && (
    <ul class="legend" aria-label="Lines">
      {(smooth ? lines.filter((line) => line.smooth || !lines.some((other) => other.smooth && other.key === line.key && other.label.startsWith(line.label))) : lines).map((line) => (
        <li key={line.label}><span class="swatch" style={{ background: line.colour }} />{line.smooth ? line.label.replace(/, smoothed$/, "") : line.label}</li>
      ))}
    </ul>
  );
  const body = lines.length ? (
      <Lines
        name={name} lines={lines} format={format} log={log} axis={axis} height={height} group={byStep ? "steps" : axis}
        marks={marks} limits={props.limits ?? []} band={props.band} wholeBand={!!props.wholeBand} spot={props.spot}
        stacked={!!props.stacked} fromZero={!!props.fromZero}
        range={byStep ? zoom : local} onRange={(range) => (byStep ? setZoom(range) : setLocal(range ?? undefined))}
        onOpen={props.plain ? undefined : openSeries} onPlot={(made) => (plot.current = made)}
      />
  ) : loading || !visible ? (
    <Loading what={`Loading ${name}`} height={height} asleep={!visible} />
  ) : error ? (
    <Problem text={error} />
  ) : (
    <Empty title="No values yet" />
  );
  return (
    <div ref={element} class="chart">
      <Card
        title={keys.length === 1 && !props.plain ? (
          <button class="plain" onClick={() => openSeries(keys[0]!)} title={keys[0]} aria-label={label.where && keys[0]}>{label.title}</button>
        ) : name}
        note={<>{props.note}{label.where && <span class="where" title={label.where}>{label.where}</span>}{legend}</>}
        pin={props.pin !== false && keys.length === 1 ? keys[0] : undefined}
        actions={
          <>
            {zoom && byStep && <button class="tool" title="Show all steps" aria-label="Show all steps" onClick={() => setZoom(null)}>all</button>}
            {!props.stacked && (
              <button class={isLog ? "tool on" : "tool"} aria-pressed={isLog} title="Logarithmic axis" aria-label={`Logarithmic axis of ${name}`} onClick={() => setLog(!isLog)}>
                log
              </button>
            )}
          </>
        }
        save={lines.length ? {
          PNG: () => plot.current && savePng(plot.current.ctx.canvas, name),
          SVG: () => saveLinesSvg(lines, name, { axis, log, format, stacked: !!props.stacked, fromZero: !!props.fromZero, band: props.band, limits: props.limits ?? [] }),
        } : undefined}
      >
        {body}
      </Card>
    </div>
  );
}
