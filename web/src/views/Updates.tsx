// How much each layer changes a step, over the band that is healthy; of several runs, their middle.

import { useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import type { Frame } from "../data/frame";
import { useFrames } from "../data/frames";
import { ROOT } from "../data/root";
import type { MatrixHeader } from "../data/types";
import { rampColour } from "../draw/palette";
import { Lines, type Line } from "../draw/Lines";
import { number } from "../draw/numbers";
import { middle } from "../draw/quantiles";
import { saveLinesSvg, savePng } from "../draw/save";
import { Card } from "../parts/Card";
import { Bar, Choice, pattern, TextField } from "../parts/controls";
import { openSeries, useRange, type ChartRun } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useCurrent } from "../state/current";
import { set, usePlace } from "../state/place";

const MOST = 300;
const NAMES: Record<string, string> = { runs: "one a run", tensors: "one a tensor", modules: "one a module" };

export function UpdatesView() {
  const { run, runs, marks } = useCurrent();
  const { settings } = usePlace();
  const [range, setRange] = useRange();
  const columns = run.columns["update"];
  const parameters = useMemo(() => new Set(run.models.flatMap((model) => model.parameters.map((one) => one.name))), [run.models]);
  const modules = columns?.stats["ratio"]?.some((at) => !parameters.has(columns.sites[at]!) && columns.sites[at] !== ROOT) ?? false;
  const levels = [...(runs.length > 1 ? ["runs"] : []), "tensors", ...(modules ? ["modules"] : [])];
  const usual = runs.length > 1 ? "runs" : modules && parameters.size > MOST ? "modules" : "tensors";
  const level = levels.find((one) => one === settings["level"]) ?? usual;
  const filter = settings["filter"] ?? "";
  const { test, problem } = pattern(filter);
  const compared = level === "runs" ? runs : runs.slice(0, 1);
  const several = useFrames<MatrixHeader>(compared.map((one) => one.id), "matrix", { kind: "update", stat: "ratio", points: 500, ...(range && { start: range[0], stop: range[1] + 1 }) }, !!columns);
  const value = several.frames[0];
  const error = several.errors.find(Boolean);
  const middles = useMemo(() => (level === "runs" ? ofRuns(several.frames, runs, test) : []), [...several.frames, runs, level, filter]);
  const band = run.healthy["update/ratio"];
  const lines = useMemo(() => {
    if (level === "runs") return middles.map(({ line }) => line);
    if (!value) return [];
    const { sites } = value.header;
    const steps = value.arrays["steps"]!;
    const count = steps.length;
    const wanted = sites
      .map((site, at) => ({ site, at }))
      .filter(({ site }) => site !== ROOT && parameters.has(site) === (level === "tensors") && test(site));
    return wanted.slice(0, MOST).map(({ site, at }, index): Line => {
      const values = value.arrays["values"]!.subarray(at * count, (at + 1) * count);
      const flags = value.arrays["flags"]!.subarray(at * count, (at + 1) * count);
      // Buckets in which nothing was measured are not NaNs.
      return { key: `update/${site}/ratio`, label: site, x: steps, low: values, high: values, last: values, flags, colour: rampColour(index, wanted.length) };
    });
  }, [value, level, filter, parameters, middles]);
  const plot = useRef<uPlot | null>(null);
  const [, setDrawn] = useState(0);
  if (!columns) return <Empty title="No updates were measured"><p>Give <code>watch()</code> the optimizer, and do not switch <code>updates</code> off.</p></Empty>;
  return (
    <div class="view">
      <h1 class="hidden">Update ratios</h1>
      <Bar>
        {levels.length > 1 && <Choice label="Lines" value={level} options={levels.map((one) => [one, NAMES[one]!] as const)} onChange={(next) => set({ level: next === usual ? "" : next })} />}
        <TextField label="Layers" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={problem} />
      </Bar>
      <Card
        title="Update ratio ‖Δw‖ / ‖w‖"
        note={[level === "runs" ? "median of all tensors, and their middle 80 %" : runs.length > 1 && run.name, band && `healthy: ${number(band[0], 2)} … ${number(band[1], 2)}`, lines.length === MOST && `the first ${MOST}: filter for others`].filter(Boolean).join(" · ")}
        actions={range && <button class="tool" onClick={() => setRange(null)} aria-label="Show all steps">all</button>}
        save={{ PNG: () => plot.current && savePng(plot.current.ctx.canvas, "update ratio"), SVG: () => saveLinesSvg(lines, "update ratio", { axis: "step", log: true, band }) }}
      >
        {error && !lines.length ? <Problem text={error} /> : !value && several.loading ? <Loading what="Loading update ratios" height={420} /> : !lines.length ? <Empty title="No layer matches">{filter}</Empty> : (
          <>
            {level === "runs" ? (
              <ul class="legend">{compared.map((one) => <li key={one.id}><span class="swatch" style={{ background: one.colour }} />{one.title}</li>)}</ul>
            ) : <div class="ramp-legend" aria-hidden="true"><span>first layer</span><i /><span>last layer</span></div>}
            <Lines name={level === "runs" ? "Update ratio of each run" : "Update ratio of each layer"} lines={lines} log height={400} band={band} wholeBand marks={marks} range={range} onRange={setRange} onOpen={level === "runs" ? undefined : openSeries} onPlot={(made) => { plot.current = made; setDrawn((n) => n); }} />
          </>
        )}
      </Card>
      {band && level === "runs" && middles.length > 0 && <Beside middles={middles} band={band} />}
      {band && level !== "runs" && lines.length > 0 && <Outside lines={lines} band={band} />}
    </div>
  );
}

interface RunMiddle {
  run: ChartRun;
  line: Line;
  /** The newest value of each tensor. */
  newest: number[];
}

/** One line a run: where the middle of its tensors is. */
function ofRuns(frames: readonly (Frame<MatrixHeader> | undefined)[], runs: readonly ChartRun[], test: (site: string) => boolean): RunMiddle[] {
  return frames.flatMap((frame, at) => {
    if (!frame || !runs[at]) return [];
    const { steps, values } = frame.arrays as Record<string, Float32Array>;
    const count = steps!.length;
    // Sites with a module's name are sums of what is counted already.
    const { sites } = frame.header;
    const inner = (site: string): boolean => sites.some((other) => other.startsWith(`${site}.`));
    const rows = sites.map((_, row) => row).filter((row) => sites[row] !== ROOT && !inner(sites[row]!) && test(sites[row]!));
    if (!rows.length) return [];
    const { low, median, high } = middle(values!, rows, count);
    const line: Line = { key: "", label: runs[at].title, x: steps!, low, high, last: median, colour: runs[at].colour };
    const newest = rows.map((row) => {
      let i = count - 1;
      while (i > 0 && Number.isNaN(values![row * count + i]!)) i -= 1;
      return values![row * count + i]!;
    });
    return [{ run: runs[at], line, newest }];
  });
}

function Beside({ middles, band }: { middles: readonly RunMiddle[]; band: [number, number] }) {
  return (
    <Card title="Tensors in and outside the band now">
      <div class="table-scroll"><table class="table">
        <thead><tr><th scope="col">Run</th><th scope="col" class="num">Median</th><th scope="col" class="num">Do not move</th><th scope="col" class="num">Slow</th><th scope="col" class="num">Inside</th><th scope="col" class="num">Fast</th></tr></thead>
        <tbody>
          {middles.map(({ run, line, newest }) => (
            <tr key={run.id}>
              <th scope="row"><span class="swatch" style={{ background: run.colour }} />{run.title}</th>
              <td class="num">{number(line.last[line.last.length - 1] ?? NaN, 3)}</td>
              <td class="num">{newest.filter((one) => one === 0).length}</td>
              <td class="num">{newest.filter((one) => one > 0 && one < band[0]).length}</td>
              <td class="num">{newest.filter((one) => one >= band[0] && one <= band[1]).length}</td>
              <td class="num">{newest.filter((one) => one > band[1]).length}</td>
            </tr>
          ))}
        </tbody>
      </table></div>
    </Card>
  );
}

function Outside({ lines, band }: { lines: readonly Line[]; band: [number, number] }) {
  const now = lines.map((line) => {
    let at = line.last.length - 1;
    while (at > 0 && Number.isNaN(line.last[at]!)) at -= 1;
    return { line, value: line.last[at] ?? NaN };
  });
  const outside = now.filter(({ value }) => value < band[0] || value > band[1]);
  const far = ({ value }: { value: number }): number => (value <= 0 ? Infinity : Math.abs(Math.log10(value / Math.sqrt(band[0] * band[1]))));
  outside.sort((a, b) => far(b) - far(a));
  return (
    <Card title={outside.length ? `${outside.length} of ${lines.length} outside the band now` : `All ${lines.length} inside the band now`}>
      {outside.length > 0 && (
        <table class="table">
          <thead><tr><th scope="col">Layer</th><th scope="col" class="num">Update ratio</th><th scope="col">Means</th></tr></thead>
          <tbody>
            {outside.slice(0, 20).map(({ line, value }) => (
              <tr key={line.key}>
                <td><button class="plain mono" onClick={() => openSeries(line.key)}>{line.label}</button></td>
                <td class="num">{number(value, 3)}</td>
                <td class="quiet">{value === 0 ? "does not move at all" : value < band[0] ? "moves slowly" : "moves fast"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </Card>
  );
}
