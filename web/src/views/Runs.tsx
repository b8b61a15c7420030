// All runs; two or more beside each other.

import { useContext, useMemo } from "preact/hooks";
import { useRun, useRuns } from "../data/ask";
import { useNows } from "../data/live";
import { allKeys } from "../data/key";
import { toNumber, type Axis, type Run, type RunLine, type Spark } from "../data/types";
import type { Mark } from "../draw/marks";
import { lineColour } from "../draw/palette";
import { ago, duration, grouped, number, words } from "../draw/numbers";
import { AlignedBy, Bar, pattern, Smoothing, TextField, useAlign } from "../parts/controls";
import { SeverityIcon, StatusBadge } from "../parts/icons";
import { SeriesChart, type ChartRun } from "../parts/SeriesChart";
import { Empty, Loading } from "../parts/states";
import { CurrentContext } from "../state/current";
import { joinList, link, set, splitList, usePlace } from "../state/place";

export function RunsView() {
  const list = useRuns();
  const nows = useNows();
  const current = useContext(CurrentContext);
  const { settings } = usePlace();
  const chosen = splitList(settings["runs"]);
  const filter = settings["filter"] ?? "";
  const { test, problem } = pattern(filter);
  if (!list.value) return <Loading what="Loading runs" />;
  const shown = list.value.runs.filter((run) => test(run.name) || chosen.includes(run.id));
  const toggle = (id: string): void => {
    const next = chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id];
    if (next.length) set({ runs: joinList(next.slice(0, 8)) });
  };
  return (
    <div class="view">
      <h1 class="hidden">Runs</h1>
      {list.value.runs.length > 8 && (
        <Bar><TextField label="Runs" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={problem} /></Bar>
      )}
      <div class="card table-card">
        <table class="table runs">
          <thead>
            <tr>
              <th scope="col"><span class="hidden">Compare</span></th><th scope="col">Run</th><th scope="col">Status</th><th scope="col" class="num">Step</th>
              <th scope="col" class="num">Loss</th><th scope="col" class="spark-cell"><span class="hidden">Loss curve</span></th><th scope="col">Worst finding</th><th scope="col" class="wide-only">Started</th><th scope="col" class="num wide-only">Took</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((run) => (
              <RunRow key={run.id} run={{ ...run, ...(nows[run.id] && { status: nows[run.id]!.status, last_step: nows[run.id]!.last_step }) }} at={chosen.indexOf(run.id)} toggle={() => toggle(run.id)} />
            ))}
          </tbody>
        </table>
      </div>
      {current && (current.runs.length > 1 ? <Compare runs={current.runs} axes={current.run.axes} run={current.run} all={list.value.runs} marks={current.marks} /> : (
        list.value.runs.length > 1 && <p class="quiet center">Tick another run to lay it over this one: here, and in every other view.</p>
      ))}
    </div>
  );
}

function RunRow({ run, at, toggle }: { run: RunLine; at: number; toggle(): void }) {
  const broken = run.status === "broken";
  return (
    <tr class={at >= 0 ? "chosen" : ""}>
      <td><input type="checkbox" checked={at >= 0} disabled={broken} aria-label={`Compare ${run.name}`} onChange={toggle} style={{ accentColor: at >= 0 ? lineColour(at) : undefined }} /></td>
      <td class="run-name">{broken ? run.name : <a href={link("findings", { runs: run.id, finding: "" })}>{run.name === "." ? run.title : run.name}</a>}{broken && <small>{run.problem}</small>}</td>
      <td><StatusBadge status={run.status} /></td>
      <td class="num">{run.last_step === null ? "–" : grouped(run.last_step)}{run.total_steps ? <span class="quiet"> / {grouped(run.total_steps)}</span> : null}</td>
      <td class="num">{run.loss ? number(toNumber(run.loss.last), 4) : "–"}</td>
      <td class="spark-cell">{run.loss && <Sparkline spark={run.loss.spark} colour={at >= 0 ? lineColour(at) : "var(--ink-3)"} />}</td>
      <td>{run.worst ? <a class="worst" href={link("findings", { runs: run.id, finding: run.worst.id })}><SeverityIcon severity={run.worst.severity} /> {words(run.worst.name)}{(run.num_findings ?? 0) > 1 && <span class="quiet"> +{run.num_findings! - 1}</span>}</a> : <span class="quiet">{broken ? "" : "–"}</span>}</td>
      <td class="wide-only quiet">{run.started ? ago(run.started) : ""}</td>
      <td class="num wide-only quiet">{duration(run.duration_s)}</td>
    </tr>
  );
}

function Sparkline({ spark, colour }: { spark: Spark; colour: string }) {
  const values = spark.last.map(toNumber);
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return null;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const [width, height] = [110, 24];
  let path = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) {
      pen = "M";
      return;
    }
    path += `${pen}${((i / (values.length - 1)) * width).toFixed(1)},${(2 + (1 - (value - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`;
    pen = "L";
  });
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} width={width} height={height} role="img" aria-label={`Loss from ${number(finite[0]!, 3)} to ${number(finite[finite.length - 1]!, 3)}`}>
      <path d={path} fill="none" stroke={colour} stroke-width="1.4" />
      {spark.flags.map((flag, i) => (flag & 7 ? <circle key={i} cx={(i / (values.length - 1)) * width} cy={height - 2} r={2} fill="#e61c8c" /> : null))}
    </svg>
  );
}

/** What two trainings are compared by first. */
const KEYS = ["eval/val/loss", "gradient/[root module]/norm", "summary/update_ratio/median", "optimizer/group0/lr", "speed/run/tokens_per_s"];

function Compare({ runs, axes, run, all, marks }: { runs: readonly ChartRun[]; axes: readonly Axis[]; run: Run; all: readonly RunLine[]; marks: readonly Mark[] }) {
  const { settings } = usePlace();
  const align = useAlign(axes);
  const search = settings["compare"] ?? "";
  const { test, problem } = pattern(search);
  const keys = useMemo(() => {
    const there = allKeys(run.columns);
    if (search) return there.filter((key) => test(key)).slice(0, 12);
    const wanted = [run.loss_key ?? "loss", ...KEYS];
    return wanted.filter((key) => there.includes(key));
  }, [run.columns, run.loss_key, search]);
  return (
    <section aria-label="Comparison">
      <h2 class="section">Compared</h2>
      <Bar>
        <AlignedBy axes={axes} />
        <TextField label="Series" value={search} placeholder="regular expression; empty: the most telling" onInput={(text) => set({ compare: text })} problem={problem} />
        <Smoothing />
      </Bar>
      <ul class="legend big">
        {runs.map((one) => <li key={one.id}><span class="swatch" style={{ background: one.colour }} />{one.title}</li>)}
      </ul>
      {keys.length ? <div class="grid">{keys.map((key) => <SeriesChart key={key + align} runs={runs} keys={[key]} axis={align} marks={marks} unnamed />)}</div> : <Empty title="No series matches">{search}</Empty>}
      <h2 class="section">What differs in their settings</h2>
      <Differences runs={runs} all={all} />
    </section>
  );
}

function Differences({ runs }: { runs: readonly ChartRun[]; all: readonly RunLine[] }) {
  return (
    <div class="card table-card">
      <Columns ids={runs.map((run) => run.id)} runs={runs} />
    </div>
  );
}

/** Hooks can't be called in a loop of changing length: up to eight runs, always eight calls. */
function Columns({ ids, runs }: { ids: string[]; runs: readonly ChartRun[] }) {
  const eight = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => ids[i] ?? null);
  const answers = [useRun(eight[0]!), useRun(eight[1]!), useRun(eight[2]!), useRun(eight[3]!), useRun(eight[4]!), useRun(eight[5]!), useRun(eight[6]!), useRun(eight[7]!)];
  const flats = ids.slice(0, 8).map((_, i) => {
    const run = answers[i]!.value;
    return run ? { ...flat(run.config, ""), ...flat({ watch: run.watch }, ""), ...flat({ git: run.git, device: run.device }, ""), ...groupsOf(run) } : null;
  });
  if (flats.some((one) => one === null)) return <Loading what="Loading settings" />;
  const names = [...new Set(flats.flatMap((one) => Object.keys(one!)))];
  const different = names.filter((name) => new Set(flats.map((one) => one![name])).size > 1);
  if (!different.length) return <Empty title="They have the same settings" />;
  return (
    <table class="table">
      <thead><tr><th scope="col">Setting</th>{runs.slice(0, 8).map((run) => <th key={run.id} scope="col"><span class="swatch" style={{ background: run.colour }} />{run.title}</th>)}</tr></thead>
      <tbody>
        {different.map((name) => (
          <tr key={name}><th scope="row" class="mono">{name}</th>{flats.map((one, i) => <td key={i} class="mono">{one![name] ?? <span class="quiet">–</span>}</td>)}</tr>
        ))}
      </tbody>
    </table>
  );
}

function groupsOf(run: Run): Record<string, string> {
  const out: Record<string, string> = {};
  run.groups.forEach(({ optimizer, index, options }, at) => {
    out[`group${at}.optimizer`] = `${optimizer} ${index}`;
    for (const [name, value] of Object.entries(options)) out[`group${at}.${name}`] = JSON.stringify(value);
  });
  return out;
}

function flat(value: unknown, name: string): Record<string, string> {
  if (value !== null && typeof value === "object" && !Array.isArray(value))
    return Object.assign({}, ...Object.entries(value).map(([key, inner]) => flat(inner, name ? `${name}.${key}` : key))) as Record<string, string>;
  return { [name]: typeof value === "string" ? value : JSON.stringify(value) };
}
