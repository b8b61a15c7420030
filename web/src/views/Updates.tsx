// How much each layer changes a step, over the band that is healthy.

import { useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { useFrame } from "../data/ask";
import { ROOT } from "../data/root";
import type { MatrixHeader } from "../data/types";
import { rampColour } from "../draw/palette";
import { Lines, type Line } from "../draw/Lines";
import { number } from "../draw/numbers";
import { saveLinesSvg, savePng } from "../draw/save";
import { Card } from "../parts/Card";
import { Bar, Choice, pattern, TextField } from "../parts/controls";
import { openSeries, useRange } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useCurrent } from "../state/current";
import { set, usePlace } from "../state/place";

const MOST = 300;

export function UpdatesView() {
  const { run, marks } = useCurrent();
  const { settings } = usePlace();
  const [range, setRange] = useRange();
  const columns = run.columns["update"];
  const parameters = useMemo(() => new Set(run.models.flatMap((model) => model.parameters.map((one) => one.name))), [run.models]);
  const modules = columns?.stats["ratio"]?.some((at) => !parameters.has(columns.sites[at]!) && columns.sites[at] !== ROOT) ?? false;
  const level = !modules ? "tensors" : (settings["level"] ?? (parameters.size > MOST ? "modules" : "tensors"));
  const filter = settings["filter"] ?? "";
  const { test, problem } = pattern(filter);
  const { value, error, loading } = useFrame<MatrixHeader>(run.id, "matrix", { kind: "update", stat: "ratio", points: 500, ...(range && { start: range[0], stop: range[1] + 1 }) }, !!columns);
  const band = run.healthy["update/ratio"];
  const lines = useMemo(() => {
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
  }, [value, level, filter, parameters]);
  const plot = useRef<uPlot | null>(null);
  const [, setDrawn] = useState(0);
  if (!columns) return <Empty title="No updates were measured"><p>Give <code>watch()</code> the optimizer, and do not switch <code>updates</code> off.</p></Empty>;
  return (
    <div class="view">
      <h1 class="hidden">Update ratios</h1>
      <Bar>
        {modules && <Choice label="Lines" value={level as "tensors" | "modules"} options={[["tensors", "one a tensor"], ["modules", "one a module"]] as const} onChange={(next) => set({ level: next })} />}
        <TextField label="Layers" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={problem} />
      </Bar>
      <Card
        title="Update ratio ‖Δw‖ / ‖w‖"
        note={[band && `healthy: ${number(band[0], 2)} … ${number(band[1], 2)}`, lines.length === MOST && `the first ${MOST}: filter for others`].filter(Boolean).join(" · ")}
        actions={range && <button class="tool" onClick={() => setRange(null)} aria-label="Show all steps">all</button>}
        save={{ PNG: () => plot.current && savePng(plot.current.ctx.canvas, "update ratio"), SVG: () => saveLinesSvg(lines, "update ratio", "step", true) }}
      >
        {error ? <Problem text={error} /> : !value && loading ? <Loading what="Loading update ratios" height={420} /> : !lines.length ? <Empty title="No layer matches">{filter}</Empty> : (
          <>
            <div class="ramp-legend" aria-hidden="true"><span>first layer</span><i /><span>last layer</span></div>
            <Lines name="Update ratio of each layer" lines={lines} log height={400} band={band} wholeBand marks={marks} range={range} onRange={setRange} onOpen={openSeries} onPlot={(made) => { plot.current = made; setDrawn((n) => n); }} />
          </>
        )}
      </Card>
      {band && lines.length > 0 && <Outside lines={lines} band={band} />}
    </div>
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
