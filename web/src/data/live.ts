// Server-sent events: which version each run has now, and whether the server is there.

import { store, useStore } from "../state/store";
import { isReport } from "./recorded";
import type { Status } from "./types";

export interface Now {
  version: string;
  columns_version: string;
  status: Status;
  last_step: number | null;
}

export type Connection = "connecting" | "live" | "lost" | "refused";

export const connection = store<Connection>("connecting");
/** Counts connections after the first: what failed while the server was away is asked again. */
export const connections = store(0);
let opened = false;
export const listVersion = store("");
const nows = store<Readonly<Record<string, Now>>>({});

let source: EventSource | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
/** Begin to listen; once is enough. A report has nobody to listen to. */
export function listen(): void {
  if (!source && !isReport()) open();
}

function open(): void {
  clearTimeout(timer);
  source?.close();
  // Without `run` the server follows all runs of the folder: the list and the current runs alike.
  source = new EventSource("api/live");
  source.onopen = () => {
    connection.set("live");
    if (opened) connections.set(connections.get() + 1);
    opened = true;
  };
  source.onerror = () => {
    if (connection.get() !== "refused") connection.set("lost");
    // A browser gives up on an answer that is no event stream, e.g. a proxy's "bad gateway".
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(timer);
      timer = setTimeout(open, 1000);
    }
  };
  source.addEventListener("run", (message) => {
    const { run, ...now } = JSON.parse(message.data as string) as Now & { run: string };
    nows.set({ ...nows.get(), [run]: now });
  });
  source.addEventListener("runs", (message) => {
    listVersion.set((JSON.parse(message.data as string) as { version: string }).version);
  });
}

/** What is known of a run right now. */
export function useNow(run: string | undefined): Now | undefined {
  const all = useStore(nows);
  return run === undefined ? undefined : all[run];
}

/** All runs that moved since the page was opened. */
export function useNows(): Readonly<Record<string, Now>> {
  return useStore(nows);
}
