// Distributions: which tensor, and which way to look at it.

import { useMemo } from "preact/hooks";
import { words } from "../draw/numbers";
import { Bar, Choice, pattern, TextField, Toggle } from "../parts/controls";
import { Empty } from "../parts/states";
import { useCurrent } from "../state/current";
import { set, usePlace } from "../state/place";
import { Histograms, type Mode } from "./Histograms";

const ORDER = ["gradient", "activation", "parameter", "update"];

export function DistributionsView() {
  const { run, runs } = useCurrent();
  const { settings } = usePlace();
  const kinds = Object.keys(run.columns).filter((kind) => run.columns[kind]!.histograms.length).sort((a, b) => (ORDER.indexOf(a) + 1 || 9) - (ORDER.indexOf(b) + 1 || 9));
  const kind = kinds.includes(settings["kind"] ?? "") ? settings["kind"]! : (kinds[0] ?? "");
  const columns = run.columns[kind];
  const matrices = new Set(run.models.flatMap((model) => model.parameters.filter(({ shape }) => shape.length > 1).map(({ name }) => name)));
  const filter = settings["filter"] ?? "";
  const { test, problem } = pattern(filter);
  const sites = useMemo(() => (columns ? columns.histograms.map((at) => columns.sites[at]!).filter(test) : []), [columns, filter]);
  const site = sites.includes(settings["site"] ?? "") ? settings["site"]! : (sites.find((one) => matrices.has(one) && one.split(".").length > 2) ?? sites[0] ?? "");
  const mode = (settings["mode"] as Mode | undefined) ?? "heat";
  if (!kinds.length) return <Empty title="No histograms were taken"><p>They are on by default; this run was watched with <code>histograms=False</code>.</p></Empty>;
  const at = sites.indexOf(site);
  return (
    <div class="view">
      <h1 class="hidden">Distributions</h1>
      <Bar>
        <Choice label="What" value={kind} options={kinds.map((one) => [one, words(one)] as const)} onChange={(next) => set({ kind: next })} />
        <TextField label="Filter" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={problem} />
        <Choice label="Tensor" value={site} options={sites} onChange={(next) => set({ site: next })} />
        <span class="field"><span class="field-label">Depth</span>
          <span class="toggle">
            <button disabled={at <= 0} aria-label="Previous tensor" onClick={() => set({ site: sites[at - 1] })}>↑</button>
            <button disabled={at >= sites.length - 1} aria-label="Next tensor" onClick={() => set({ site: sites[at + 1] })}>↓</button>
          </span>
        </span>
        <Toggle label="As" value={mode} options={[["heat", "heatmap"], ["ridge", "ridge"], ["fan", "percentiles"]]} onChange={(next) => set({ mode: next === "heat" ? "" : next })} />
      </Bar>
      {!site ? <Empty title="No tensor matches">{filter}</Empty> : runs.length > 1 ? (
        <div class={runs.length > 2 ? "grid" : "view"}>
          {runs.map((one) => <Histograms key={one.id} run={one.id} kind={kind} site={site} mode={mode} height={300} title={`${words(kind)} of ${site}, ${one.title}`} />)}
        </div>
      ) : (
        <>
          <Histograms run={run.id} kind={kind} site={site} mode={mode} height={440} title={`${words(kind)} of ${site}`} />
          {mode === "heat" && <Histograms run={run.id} kind={kind} site={site} mode="fan" height={220} />}
        </>
      )}
    </div>
  );
}
