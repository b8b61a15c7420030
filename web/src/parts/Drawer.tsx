// One series, opened from anywhere: large, with its distribution and what else is known of its site.

import { useEffect, useRef } from "preact/hooks";
import { hasKey, keyText, parseKey } from "../data/key";
import { words } from "../draw/numbers";
import { useCurrent } from "../state/current";
import { link, set, usePlace } from "../state/place";
import { Histograms } from "../views/Histograms";
import { Icon } from "./icons";
import { SeriesChart } from "./SeriesChart";
import { Empty } from "./states";

/** The statistics of a tensor that say most, in this order. */
const FIRST = ["rms", "norm", "ratio", "std", "mean", "absmax", "zero_frac", "dead_frac", "cosine", "entropy", "max_logit"];

export function Drawer() {
  const { settings } = usePlace();
  const { run, runs, marks } = useCurrent();
  const open = settings["open"];
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!open) return;
    const before = document.activeElement as HTMLElement | null;
    panel.current?.focus({ preventScroll: true });
    return () => before?.isConnected && before.focus({ preventScroll: true });
  }, [!open]);
  if (!open) return null;
  const key = parseKey(open, run.columns);
  const columns = run.columns[key.kind];
  const at = columns?.sites.indexOf(key.site) ?? -1;
  const stats = columns
    ? [...Object.entries(columns.stats), ...Object.entries(columns.computed).filter(([stat]) => stat === "absmax")]
        .filter(([, where]) => where.includes(at)).map(([stat]) => stat)
    : [];
  stats.sort((a, b) => (FIRST.indexOf(a) + 1 || 99) - (FIRST.indexOf(b) + 1 || 99));
  const others = stats.filter((stat) => stat !== key.stat && FIRST.includes(stat)).slice(0, 4);
  const kinds = Object.entries(run.columns).filter(([kind, { sites }]) => kind !== key.kind && kind !== "scalar" && sites.includes(key.site));
  const parameter = run.models.flatMap((model) => model.parameters).find(({ name }) => name === key.site);
  const module = run.models.flatMap((model) => model.modules).find(({ name }) => name === key.site);
  const about = parameter ? `${parameter.shape.join(" × ")} ${parameter.dtype.replace("torch.", "")}` : (module?.type ?? "");
  return (
    <section ref={panel} class="drawer" role="dialog" aria-label={`Series ${open}`} tabIndex={-1}>
      <header class="drawer-head">
        <div>
          <div class="overline">{key.kind === "scalar" ? "logged" : words(key.kind)}{about && ` · ${about}`}</div>
          <h2 class="drawer-title">{key.site}</h2>
        </div>
        <button class="tool" aria-label="Close the series" title="Close (Esc)" onClick={() => set({ open: "" })}><Icon name="close" /></button>
      </header>
      {!hasKey(run, open) && at < 0 ? (
        <Empty title="This run has no such series">{open}</Empty>
      ) : (
        <div class="drawer-body">
          {stats.length > 1 && (
            <div class="chips" role="group" aria-label="Statistics">
              {stats.map((stat) => (
                <button key={stat} class="chip" aria-pressed={stat === key.stat} onClick={() => set({ open: keyText({ ...key, stat }) })}>{stat}</button>
              ))}
            </div>
          )}
          {kinds.length > 0 && (
            <div class="chips" role="group" aria-label="Also measured here">
              <span class="quiet">also its</span>
              {kinds.map(([kind, { stats: theirs, sites }]) => {
                const where = sites.indexOf(key.site);
                const stat = FIRST.find((one) => theirs[one]?.includes(where)) ?? Object.keys(theirs)[0]!;
                return <button key={kind} class="chip" onClick={() => set({ open: keyText({ kind, site: key.site, stat }) })}>{kind}</button>;
              })}
            </div>
          )}
          <SeriesChart runs={runs} keys={[open]} title={key.kind === "scalar" ? key.site : key.stat} height={220} marks={marks} band={run.healthy[`${key.kind}/${key.stat}`]} plain />
          {at >= 0 && columns!.histograms.includes(at) && <Histograms run={run.id} kind={key.kind} site={key.site} mode="heat" height={150} />}
          {others.map((stat) => (
            <SeriesChart key={stat} runs={runs} keys={[keyText({ ...key, stat })]} title={stat} height={110} marks={marks} band={run.healthy[`${key.kind}/${stat}`]} plain />
          ))}
          <p class="quiet links">
            {columns && columns.sites.length > 2 && key.kind !== "scalar" && <a href={link("layers", { kind: key.kind, stat: key.stat, open: "" })}>All layers as a heatmap</a>}
            {at >= 0 && columns!.histograms.includes(at) && <a href={link("distributions", { kind: key.kind, site: key.site, open: "" })}>Distribution</a>}
          </p>
        </div>
      )}
    </section>
  );
}
