// The top line: which run, how it is doing, and whether this is live.

import { connection } from "../data/live";
import { reportMade } from "../data/recorded";
import type { RunLine } from "../data/types";
import { grouped } from "../draw/numbers";
import type { Current } from "../state/current";
import { helpOpen, useCommand } from "../state/keys";
import { link, set, splitList, usePlace, joinList } from "../state/place";
import { useStore } from "../state/store";
import { toggleTheme, useTheme } from "../state/theme";
import { Icon, StatusBadge } from "./icons";

export function Head({ all, current, id }: { all: readonly RunLine[]; current: Current | null; id: string | null }) {
  const theme = useTheme();
  const live = useStore(connection) === "live";
  const { settings } = usePlace();
  const choose = (next: string): void =>
    set({ runs: joinList([next, ...splitList(settings["runs"]).slice(1).filter((one) => one !== next)]), open: "", finding: "", x: "" }, true);
  const at = all.findIndex((run) => run.id === id);
  useCommand("next-run", () => all[at + 1] && choose(all[at + 1]!.id));
  useCommand("previous-run", () => all[at - 1] && choose(all[at - 1]!.id));
  const run = current?.run;
  const made = reportMade();
  return (
    <header class="head">
      <a class="brand" href={link("findings")} aria-label="torchvitals">
        <svg viewBox="0 0 32 32" aria-hidden="true"><path d="M3 17h6.500l3-9 5.500 17 4-11 2 3h5" /></svg>
        <span>torchvitals</span>
      </a>
      {made ? <strong class="run-name">{run?.name}</strong> : (
        <label class="run-choice">
          <span class="hidden">Run</span>
          <select value={id ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
            {all.map((one) => <option key={one.id} value={one.id}>{one.name === "." ? one.title : one.name}</option>)}
          </select>
        </label>
      )}
      {run && (
        <span class="head-facts">
          <StatusBadge status={run.status} />
          <span class="figure" title="Last step that was measured">step {run.last_step === null ? "–" : grouped(run.last_step)}{run.total_steps ? <span class="quiet"> / {grouped(run.total_steps)}</span> : null}</span>
          {run.status === "running" && live && <span class="live" title="New steps appear by themselves"><i aria-hidden="true" />live</span>}
          {made && <span class="figure quiet">report of {new Date(made * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}</span>}
          {current!.runs.length > 1 && <a class="chip" href={link("runs")}>+ {current!.runs.length - 1} compared</a>}
        </span>
      )}
      <span class="spacer" />
      <button class="tool" onClick={toggleTheme} aria-label={theme === "dark" ? "Light theme" : "Dark theme"} title="Light or dark (t)"><Icon name={theme === "dark" ? "sun" : "moon"} /></button>
      <button class="tool" onClick={() => helpOpen.set(true)} aria-label="Help" title="Keys (?)">?</button>
    </header>
  );
}
