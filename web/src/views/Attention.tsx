// Attention: layers × heads at a step, and the same statistic over time.

import { useMemo } from "preact/hooks";
import { useJson } from "../data/ask";
import { toNumber, type Attention } from "../data/types";
import { css as rgb, inkOn, packed } from "../draw/colours";
import { grouped, number, words } from "../draw/numbers";
import { TintLegend } from "../draw/TintLegend";
import { escaped, savePicture } from "../draw/save";
import { makeTint, tintFor } from "../draw/tint";
import { Card } from "../parts/Card";
import { Bar, Choice, StepSlider } from "../parts/controls";
import { openSeries } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useCurrent } from "../state/current";
import { set, usePlace } from "../state/place";
import { colour, useTheme } from "../state/theme";
import { LayerHeat } from "./Layers";

const MEANING: Record<string, string> = {
  entropy: "near 0: the head looks at one token only",
  max_logit: "above about 30 the softmax is saturated",
};
const FIRST = ["entropy", "max_logit"];

export function AttentionView() {
  const { run } = useCurrent();
  const { settings } = usePlace();
  const theme = useTheme();
  const [first, last] = [run.first_step ?? 0, run.last_step ?? 0];
  const step = settings["step"] === undefined ? last : Math.min(last, Number(settings["step"]));
  const { value, error } = useJson<Attention>(run.id, "attention", { step: settings["step"] }, "attention" in run.columns);
  const stats = Object.keys(value?.stats ?? {}).sort((a, b) => (FIRST.indexOf(a) + 1 || 9) - (FIRST.indexOf(b) + 1 || 9));
  const stat = stats.includes(settings["stat"] ?? "") ? settings["stat"]! : (stats[0] ?? "entropy");
  const grid = useMemo(() => (value?.stats[stat] ?? []).map((row) => row.map(toNumber)), [value, stat]);
  const tint = useMemo(() => makeTint(tintFor(stat) === "log" && grid.flat().some((one) => one < 0) ? "signed" : stat === "entropy" ? "linear" : tintFor(stat), grid.flat(), packed(colour("zero"))), [grid, stat, theme]);
  if (!("attention" in run.columns))
    return <Empty title="Attention was not watched"><p>Add <code>attention=True</code> to <code>watch()</code>: entropy, largest logit and sizes of each head.</p></Empty>;
  if (error) return <Problem text={error} />;
  if (!value) return <Loading what="Loading attention" height={300} />;
  return (
    <div class="view">
      <h1 class="hidden">Attention</h1>
      <Bar>
        <Choice label="Statistic" value={stat} options={stats.map((one) => [one, words(one)] as const)} onChange={(next) => set({ stat: next })} />
        <StepSlider value={step} first={first} last={last} onChange={(next) => set({ step: next >= last ? "" : next })} />
        <output class="figure step-out">step {grouped(value.step ?? step)}</output>
      </Bar>
      <Card title={`${words(stat)} of each head`} note={MEANING[stat]} save={savePicture(() => gridPicture(value.layers, grid, (one) => tint.colour(one, Number.isFinite(one) ? 0 : 1)), `${words(stat)} of each head, step ${grouped(value.step ?? step)}`)}>
        <TintLegend tint={tint} />
        <div class="heads-scroll">
          <table class="heads">
            <thead>
              <tr><th scope="col" class="hidden-cell">Layer</th>{Array.from({ length: value.num_heads }, (_, head) => <th key={head} scope="col">{head}</th>)}</tr>
            </thead>
            <tbody>
              {value.layers.map((layer, at) => (
                <tr key={layer}>
                  <th scope="row" title={layer}>{layer}</th>
                  {Array.from({ length: value.num_heads }, (_, head) => {
                    const one = grid[at]?.[head] ?? NaN;
                    const missing = value.stats[stat]?.[at]?.[head] === null || value.stats[stat]?.[at]?.[head] === undefined;
                    if (missing) return <td key={head} />;
                    const shade = tint.colour(one, Number.isFinite(one) ? 0 : 1);
                    return (
                      <td key={head}>
                        <button
                          style={{ background: rgb(shade), color: inkOn(shade) }} title={`${layer}, head ${head}: ${number(one, 4)}`}
                          aria-label={`${layer}, head ${head}: ${number(one, 4)}`} onClick={() => openSeries(`attention/${layer}.head_${head}/${stat}`)}
                        >{brief(one)}</button>
                      </td>
                    );
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <LayerHeat kind="attention" stat={stat} tint={tint.kind} title={`${words(stat)} over time`} />
    </div>
  );
}

/** Short enough for a cell: 0.0008 is 8e-4 there. */
function brief(value: number): string {
  const text = number(value, 2);
  return text.length > 6 ? value.toExponential(0).replace("e+", "e") : text;
}

/** The grid as a drawing, for a file. */
function gridPicture(layers: readonly string[], grid: readonly (readonly number[])[], shade: (value: number) => number) {
  const left = 20 + Math.max(...layers.map((layer) => layer.length)) * 6.4;
  const [wide, high] = [54, 30];
  const heads = Math.max(...grid.map((row) => row.length));
  const parts = Array.from({ length: heads }, (_, head) => `<text x="${left + (head + 0.5) * wide}" y="12" text-anchor="middle" fill="${colour("ink-3")}">${head}</text>`);
  layers.forEach((layer, at) => {
    parts.push(`<text x="${left - 8}" y="${at * high + 38}" text-anchor="end" fill="${colour("ink-2")}">${escaped(layer)}</text>`);
    grid[at]!.forEach((one, head) => {
      if (Number.isNaN(one)) return;
      parts.push(`<rect x="${left + head * wide + 1}" y="${at * high + 20}" width="${wide - 2}" height="${high - 2}" rx="4" fill="${rgb(shade(one))}"/><text x="${left + (head + 0.5) * wide}" y="${at * high + 38}" text-anchor="middle" fill="${inkOn(shade(one))}">${brief(one)}</text>`);
    });
  });
  return { width: left + heads * wide + 16, height: layers.length * high + 32, body: parts.join("") };
}
