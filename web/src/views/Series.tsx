// All series: search by name or regular expression, pin what matters.

import { useEffect, useMemo, useState } from "preact/hooks";
import { allKeys, hasKey, parseKey } from "../data/key";
import { grouped, words } from "../draw/numbers";
import { AlignedBy, Bar, pattern, Smoothing, TextField, useAlign } from "../parts/controls";
import { SeriesChart } from "../parts/SeriesChart";
import { Empty } from "../parts/states";
import { useCurrent } from "../state/current";
import { takeSearch } from "../state/keys";
import { set, usePins, usePlace } from "../state/place";

const PAGE = 24;

export function SeriesView() {
  const { run, runs, marks } = useCurrent();
  const { settings } = usePlace();
  const [pins] = usePins();
  const axis = useAlign(runs.length > 1 ? run.axes : ["step"]);
  const search = settings["search"] ?? "";
  const { test, problem } = pattern(search);
  const all = useMemo(() => allKeys(run.columns), [run.columns]);
  const found = useMemo(() => all.filter((key) => test(key)), [all, search]);
  const [shown, setShown] = useState(PAGE);
  useEffect(() => setShown(PAGE), [search]);
  useEffect(takeSearch, []);
  const groups = useMemo(() => {
    const out = new Map<string, number>();
    for (const key of found) {
      const { kind } = parseKey(key, run.columns);
      out.set(kind, (out.get(kind) ?? 0) + 1);
    }
    return [...out];
  }, [found]);
  const pinned = pins.filter((key) => hasKey(run, key));
  return (
    <div class="view">
      <h1 class="hidden">All series</h1>
      <Bar>
        <TextField id="search" label="Search" value={search} placeholder="loss, mlp.*ratio, ^gradient/.*rms$ …" onInput={(text) => set({ search: text })} problem={problem} />
        {runs.length > 1 && run.axes.length > 1 && <AlignedBy axes={run.axes} />}
        <Smoothing />
        <span class="figure count" role="status">{grouped(found.length)} of {grouped(all.length)} series</span>
      </Bar>
      {runs.length > 1 && (
        <ul class="legend big" aria-label="Runs">
          {runs.map((one) => <li key={one.id}><span class="swatch" style={{ background: one.colour }} />{one.title}</li>)}
        </ul>
      )}
      {search === "" && (
        <div class="chips" role="group" aria-label="Kinds">
          {groups.map(([kind, count]) => (
            <button key={kind} class="chip" onClick={() => set({ search: kind === "scalar" ? "^[^/]+$" : `^${kind}/` })}>{kind === "scalar" ? "Logged" : words(kind)} <span class="quiet">{grouped(count)}</span></button>
          ))}
        </div>
      )}
      {pinned.length > 0 && (
        <section aria-label="Pinned">
          <h2 class="section">Pinned</h2>
          <div class="grid">{pinned.map((key) => <SeriesChart key={key} runs={runs} keys={[key]} axis={axis} marks={marks} height={140} unnamed />)}</div>
        </section>
      )}
      {pinned.length > 0 && <h2 class="section">Found</h2>}
      {found.length ? (
        <div class="grid three">
          {found.slice(0, shown).map((key) => {
            const { kind, stat } = parseKey(key, run.columns);
            return <SeriesChart key={key} runs={runs} keys={[key]} axis={axis} marks={marks} height={130} unnamed band={run.healthy[`${kind}/${stat}`]} />;
          })}
        </div>
      ) : <Empty title="No series matches">{search}</Empty>}
      {found.length > shown && <button class="button wide" onClick={() => setShown(shown + PAGE)}>Show {Math.min(PAGE, found.length - shown)} more of {grouped(found.length - shown)}</button>}
    </div>
  );
}
