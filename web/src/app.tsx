// The page: what is around the views.

import { useEffect, useMemo } from "preact/hooks";
import { useJson, useRun, useRuns } from "./data/ask";
import { listen, useNow } from "./data/live";
import type { Events, Findings, RunLine } from "./data/types";
import { lineColour } from "./draw/palette";
import { marksOf } from "./draw/marks";
import { Banner } from "./parts/Banner";
import { Drawer } from "./parts/Drawer";
import { Help } from "./parts/Help";
import { Head } from "./parts/Head";
import { Nav } from "./parts/Nav";
import { Empty, Loading, Problem } from "./parts/states";
import { CurrentContext, type Current } from "./state/current";
import { useShortcuts } from "./state/keys";
import { joinList, set, splitList, usePlace, type View } from "./state/place";
import { useTheme } from "./state/theme";
import { AttentionView } from "./views/Attention";
import { DepthView } from "./views/Depth";
import { DistributionsView } from "./views/Distributions";
import { FindingsView } from "./views/Findings";
import { LayersView } from "./views/Layers";
import { OverviewView } from "./views/Overview";
import { RunsView } from "./views/Runs";
import { SeriesView } from "./views/Series";
import { UpdatesView } from "./views/Updates";

const VIEW: Record<View, () => preact.JSX.Element | null> = {
  findings: FindingsView,
  overview: OverviewView,
  layers: LayersView,
  depth: DepthView,
  updates: UpdatesView,
  distributions: DistributionsView,
  attention: AttentionView,
  series: SeriesView,
  runs: RunsView,
};

export function App() {
  const { view, settings } = usePlace();
  useEffect(listen, []);
  useShortcuts();
  const theme = useTheme();
  const list = useRuns();
  const all = list.value?.runs ?? [];
  const wanted = splitList(settings["runs"]).filter((id) => !all.length || all.some((run) => run.id === id));
  const id = wanted[0] ?? first(all)?.id ?? null;
  useEffect(() => {
    if (id && wanted[0] !== id) set({ runs: joinList([id, ...wanted.slice(1)]) });
  }, [id, wanted[0]]);

  const run = useRun(id);
  const now = useNow(id ?? undefined);
  const findings = useJson<Findings>(id, "findings");
  const events = useJson<Events>(id, "events");
  const marks = useMemo(
    () => marksOf(events.value?.events ?? [], findings.value?.findings ?? []),
    [events.value, findings.value],
  );
  const titles = all.map((one) => one.id + one.name).join();
  const runs = useMemo(
    () =>
      (wanted.length ? wanted : id ? [id] : []).map((one, at) => ({
        id: one, colour: lineColour(at), title: all.find((line) => line.id === one)?.name ?? one,
      })),
    [wanted.join(), id, titles, theme],
  );
  const current: Current | null = useMemo(() => {
    if (!run.value) return null;
    const named = { ...run.value, name: runs[0]?.title ?? run.value.title };
    const value = now ? { ...named, status: now.status, last_step: now.last_step ?? named.last_step } : named;
    return { run: value, runs, alone: runs.slice(0, 1), all, findings, marks };
  }, [run.value, now, runs, all, findings.value, findings.error, marks]);

  useEffect(() => {
    const worst = findings.value?.findings.some((one) => one.state !== "resolved" && one.severity === "error");
    document.title = `${worst ? "■ " : ""}${current?.run.name ?? "torchvitals"} · torchvitals`;
  }, [current?.run.name, findings.value]);

  const Shown = VIEW[view];
  return (
    <div class="page">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the view</a>
      <Head all={all} current={current} id={id} />
      <Banner />
      <Nav view={view} findings={findings.value?.findings ?? []} hasAttention={!current || "attention" in current.run.columns} />
      <main id="main" tabIndex={-1} class="main">
        {list.error ? (
          <Problem text={list.error} />
        ) : !list.value ? (
          <Loading what="Loading runs" height={400} />
        ) : !all.length ? (
          <Empty title={`No runs in ${list.value.folder} yet`}>
            <p>Start a training with <code>torchvitals.watch(model, optimizer, run="runs/first")</code>, or try <code>vitals demo</code>. It appears here by itself.</p>
          </Empty>
        ) : view === "runs" && !current ? (
          <CurrentContext.Provider value={null}><RunsView /></CurrentContext.Provider>
        ) : run.error ? (
          <Problem text={run.error} />
        ) : !current ? (
          <Loading what="Loading the run" height={400} />
        ) : (
          <CurrentContext.Provider value={current}>
            <Shown key={view} />
            <Drawer />
          </CurrentContext.Provider>
        )}
      </main>
      <Help />
    </div>
  );
}

/** What one wants to see at first: the newest run that is going on, or else the newest. */
function first(all: readonly RunLine[]): RunLine | undefined {
  return all.find((run) => run.status === "running") ?? all.find((run) => run.status !== "broken") ?? all[0];
}
