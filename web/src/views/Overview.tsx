// The run on one screen: how far, how fast, how well.

import { useMemo } from "preact/hooks";
import { useFrame } from "../data/ask";
import { hasKey, keyText } from "../data/key";
import { ROOT } from "../data/root";
import type { OverviewStatus, Run, SeriesHeader } from "../data/types";
import { bytes, duration, grouped, number, percent, short, words } from "../draw/numbers";
import { AlignedBy, Smoothing, useAlign } from "../parts/controls";
import { SeriesChart } from "../parts/SeriesChart";
import { useCurrent } from "../state/current";
import { usePins } from "../state/place";

const PHASES = ["data", "forward", "backward", "optimizer", "monitor", "other"];

interface Chart {
  title: string;
  keys: string[];
  labels?: Record<string, string>;
  stacked?: boolean;
  fromZero?: boolean;
  note?: string;
  log?: boolean;
  /** Not smoothed: it has no noise. */
  steady?: boolean;
}

export function OverviewView() {
  const { run, runs, alone, marks } = useCurrent();
  const [pins] = usePins();
  const axis = useAlign(runs.length > 1 ? run.axes : ["step"]);
  const { value, loading } = useFrame<SeriesHeader>(run.id, "overview", { points: 2 });
  const status = value?.header.status;
  const loss = useMemo(() => lastOf(value, run.loss_key), [value, run.loss_key]);
  const charts = useMemo(() => chosen(run), [run.columns, run.loss_key]);
  const pinned = pins.filter((key) => hasKey(run, key));
  return (
    <div class="view">
      <h1 class="hidden">Overview</h1>
      <Facts run={run} status={status} loss={loss} busy={loading && !value} />
      {pinned.length > 0 && (
        <section aria-label="Pinned">
          <h2 class="section">Pinned</h2>
          <div class="grid">{pinned.map((key) => <SeriesChart key={key} runs={runs} keys={[key]} axis={axis} marks={marks} />)}</div>
        </section>
      )}
      <div class="grid-bar">{runs.length > 1 && run.axes.length > 1 && <AlignedBy axes={run.axes} />}<Smoothing /></div>
      <div class="grid">
        {charts.map(({ title, keys, ...rest }) => (
          <SeriesChart key={title} runs={rest.stacked ? alone : runs} keys={runs.length > 1 && !rest.stacked ? keys.slice(0, 2) : keys} axis={rest.stacked ? "step" : axis} title={title} marks={marks} {...rest} {...(rest.stacked && runs.length > 1 && { note: run.name })} />
        ))}
      </div>
      {marks.length > 0 && (
        <section aria-label="Events">
          <h2 class="section">What happened</h2>
          <ol class="event-list">
            {[...marks].reverse().slice(0, 30).map((mark, index) => (
              <li key={index}><span class="figure">step {grouped(mark.step)}</span> {mark.text}</li>
            ))}
          </ol>
        </section>
      )}
    </div>
  );
}

function lastOf(frame: { header: SeriesHeader; arrays: Record<string, ArrayLike<number>> } | undefined, key: string | null): number | undefined {
  const found = frame?.header.series.find((one) => one.key === key)?.arrays;
  const values = found === undefined ? undefined : frame!.arrays[`${found}.last`];
  return values?.[values.length - 1];
}

function Facts({ run, status, loss, busy }: { run: Run; status: OverviewStatus | undefined; loss: number | undefined; busy: boolean }) {
  const frac = status?.frac ?? (run.total_steps && run.last_step ? run.last_step / run.total_steps : null);
  const memory = Object.entries(status?.memory ?? {}).find(([name, value]) => typeof value === "number" && /bytes/.test(name));
  const facts: [string, string, string?][] = [
    ["Loss", loss === undefined ? "–" : number(loss, 4)],
    ["Step", run.last_step === null ? "–" : grouped(run.last_step), run.total_steps ? `of ${grouped(run.total_steps)}` : ""],
    run.status === "running" ? ["Time left", duration(status?.eta_s), `after ${duration(run.duration_s)}`] : ["Took", duration(run.duration_s)],
    ["Step time", duration(status?.step_s), status?.steps_per_s ? `${short(status.steps_per_s)} steps/s` : ""],
    status?.tokens_per_s ? ["Tokens", `${short(status.tokens_per_s)}/s`] : ["Samples", status?.samples_per_s ? `${short(status.samples_per_s)}/s` : "–"],
  ];
  if (status?.mfu) facts.push(["MFU", percent(status.mfu), `${short(status.flops_per_s ?? 0)}FLOP/s`]);
  if (memory) facts.push(["Memory", bytes(memory[1] as number)]);
  if (status?.schedule) facts.push(["Schedule", status.schedule]);
  return (
    <section class="facts" aria-label="Now" aria-busy={busy}>
      {frac !== null && frac !== undefined && (
        <div class="progress" role="progressbar" aria-label="Progress" aria-valuenow={Math.round(frac * 100)} aria-valuemin={0} aria-valuemax={100}><i style={{ width: `${Math.min(frac, 1) * 100}%` }} /></div>
      )}
      <dl>
        {facts.map(([name, value, more]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd title={value} class={value.length > 18 ? "long" : ""}>{value}{more && <small>{more}</small>}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** Which charts this run has something for. */
function chosen(run: Run): Chart[] {
  const charts: Chart[] = [];
  const sites = (kind: string, stat: string): string[] => {
    const columns = run.columns[kind];
    return columns?.stats[stat]?.map((at) => columns.sites[at]!) ?? [];
  };
  const add = (title: string, keys: string[], rest: Partial<Chart> = {}): void => {
    const there = keys.filter((key) => hasKey(run, key));
    if (there.length) charts.push({ title, keys: there, ...rest });
  };
  const evalLoss = sites("eval", "loss").map((site) => keyText({ kind: "eval", site, stat: "loss" }));
  add("Loss", [run.loss_key ?? "loss", ...evalLoss], {
    labels: Object.fromEntries([[run.loss_key ?? "loss", "train"], ...evalLoss.map((key) => [key, key.split("/")[1]!])]),
  });
  for (const stat of Object.keys(run.columns["eval"]?.stats ?? {}))
    if (stat !== "loss" && stat !== "train_mode") add(`Evaluation: ${stat}`, sites("eval", stat).map((site) => keyText({ kind: "eval", site, stat })));
  add("Gradient norm", [`gradient/${ROOT}/norm`, `gradient/${ROOT}/clipped_norm`], {
    labels: { [`gradient/${ROOT}/norm`]: "before clipping", [`gradient/${ROOT}/clipped_norm`]: "after clipping" },
  });
  add("Update ratio", ["summary/update_ratio/median", "summary/update_ratio/max", "summary/update_ratio/min"], {
    labels: { "summary/update_ratio/median": "median", "summary/update_ratio/max": "largest", "summary/update_ratio/min": "smallest" },
    note: "‖Δw‖ / ‖w‖", log: true,
  });
  add("Learning rate", sites("optimizer", "lr").slice(0, 6).map((site) => `optimizer/${site}/lr`), {
    labels: Object.fromEntries(sites("optimizer", "lr").map((site) => [`optimizer/${site}/lr`, site])), fromZero: true, log: false, steady: true,
  });
  add("Throughput", [["tokens_per_s", "samples_per_s", "steps_per_s"].map((stat) => `speed/run/${stat}`).find((key) => hasKey(run, key)) ?? ""], { fromZero: true, log: false });
  add("Where the time goes", PHASES.map((phase) => `clock/${phase}/wall_s`), {
    stacked: true, labels: Object.fromEntries(PHASES.map((phase) => [`clock/${phase}/wall_s`, phase])),
  });
  const accelerators = sites("machine", "allocated_bytes").concat(sites("machine", "peak_allocated_bytes"));
  add("Memory", [...new Set([...accelerators.map((site) => `machine/${site}/allocated_bytes`), "machine/process/rss_bytes", "machine/process/peak_rss_bytes"])], {
    labels: { "machine/process/rss_bytes": "process", "machine/process/peak_rss_bytes": "peak" }, fromZero: true, log: false, steady: true,
  });
  const categories = sites("category", "loss").slice(0, 8);
  add("Loss by category", categories.map((site) => `category/${site}/loss`), {
    labels: Object.fromEntries(categories.map((site) => [`category/${site}/loss`, site])),
  });
  add("Gradient noise scale", ["noise/run/noise_scale", "noise/run/batch_size"]);
  for (const site of (run.columns["scalar"]?.sites ?? []).filter((name) => name !== run.loss_key).slice(0, 12)) add(words(site), [site]);
  return charts;
}
