// Questions to the server, as hooks: asked while visible, asked again when the run moved on.

import { useEffect, useRef, useState } from "preact/hooks";
import { useStore } from "../state/store";
import { startAsking, type Asker } from "./asker";
import { readFrame, type Frame } from "./frame";
import { connection, connections, listVersion, useNow } from "./live";
import { answerOf, isReport } from "./recorded";
import type { Run, RunList } from "./types";

export interface Answer<T> {
  value: T | undefined;
  error: string | undefined;
  /** True until the first answer to this question. */
  loading: boolean;
}

type Value = string | number | null | undefined;
export type Arguments = Record<string, Value | readonly Value[]>;

/** `api/runs/…?a=b`, relative to the page; empty arguments are left out. */
export function address(path: string, given: Arguments = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(given))
    for (const one of Array.isArray(value) ? (value as readonly Value[]) : [value as Value])
      if (one !== null && one !== undefined && one !== "") query.append(name, String(one));
  const text = query.toString();
  return `api/${path}${text && `?${text}`}`;
}

export const runPath = (run: string, what = ""): string =>
  `runs/${encodeURIComponent(run)}${what && `/${what}`}`;

/** The server answered, and said no. */
export class Refused extends Error {}

async function fetched(url: string, signal: AbortSignal): Promise<Response> {
  const response = await fetch(url, { signal, credentials: "same-origin" });
  if (response.ok) return response;
  if (response.status === 401) connection.set("refused");
  let text = `${response.status} ${response.statusText}`;
  try {
    text = ((await response.json()) as { error?: string }).error ?? text;
  } catch {
    // not ours: a proxy's error page
  }
  throw new Refused(text);
}

type Reader = (response: Response) => Promise<unknown>;
const json: Reader = async (response) => response.json();
const frame: Reader = async (response) => readFrame(await response.arrayBuffer());

/** From the server, or in a report from the page itself. */
async function answered(url: string, read: Reader, signal: AbortSignal): Promise<unknown> {
  if (!isReport()) return read(await fetched(url, signal));
  try {
    return answerOf(url);
  } catch (error) {
    throw new Refused((error as Error).message);
  }
}

interface Kept {
  version: string;
  value: unknown;
}
/** The newest answers, by address: going back to a view shows it at once. */
const kept = new Map<string, Kept>();
const MOST_KEPT = 80;

function keep(url: string, one: Kept): void {
  kept.delete(url);
  kept.set(url, one);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
}

function useAnswer<T>(
  url: string | null,
  read: Reader,
  version: string,
  visible: boolean,
  /** The version that an answer is of. */
  versionOf: (value: T) => string,
): Answer<T> {
  const again = useStore(connections);
  const [answer, setAnswer] = useState<{ url: string | null; value?: T; error?: string }>({ url: null });
  const asker = useRef<Asker | null>(null);
  useEffect(() => {
    if (url === null || !visible) return;
    const old = kept.get(url);
    if (old) setAnswer({ url, value: old.value as T });
    const made = startAsking<T>(
      {
        ask: async (signal) => (await answered(url, read, signal)) as T,
        versionOf,
        give(value, mark) {
          keep(url, { version: mark, value });
          setAnswer({ url, value });
        },
        fail(error) {
          if (error instanceof Refused) setAnswer({ url, error: error.message });
          else {
            // The server is away. What is drawn stays; a new connection asks again.
            setAnswer((before) =>
              before.url === url && before.value !== undefined
                ? before
                : { url, error: "The server does not answer." },
            );
          }
        },
      },
      { version, again },
      old?.version,
    );
    asker.current = made;
    return () => {
      asker.current = null;
      made.stop();
    };
  }, [url, visible]);
  useEffect(() => asker.current?.changed({ version, again }), [version, again]);
  // While a new question is on its way the old picture stays, unless it is about another run.
  const same = answer.url === url || (url !== null && answer.url !== null && about(answer.url) === about(url));
  return {
    value: same ? answer.value : undefined,
    error: answer.url === url ? answer.error : undefined,
    loading: url !== null && answer.url !== url,
  };
}

const about = (url: string): string => url.split("?")[0]!;

export function useJson<T extends { version: string }>(run: string | null, what: string, given: Arguments = {}, visible = true): Answer<T> {
  const now = useNow(run ?? undefined);
  return useAnswer<T>(run && address(runPath(run, what), given), json, now?.version ?? "", visible, ({ version }) => version);
}

export function useFrame<H extends { version: string }>(run: string | null, what: string, given: Arguments = {}, visible = true): Answer<Frame<H>> {
  const now = useNow(run ?? undefined);
  return useAnswer<Frame<H>>(run && address(runPath(run, what), given), frame, now?.version ?? "", visible, ({ header }) => header.version);
}

export function useRun(run: string | null): Answer<Run> {
  const now = useNow(run ?? undefined);
  const known = now ? `${now.columns_version}/${now.status}` : "";
  return useAnswer<Run>(run && address(runPath(run)), json, known, true, ({ columns_version, status }) => `${columns_version}/${status}`);
}

export function useRuns(visible = true): Answer<RunList> {
  return useAnswer<RunList>(address("runs"), json, useStore(listVersion), visible, ({ version }) => version);
}

/** One question outside of a component's life: a frame of each of several runs. */
export async function askFrame<H>(run: string, what: string, given: Arguments, signal: AbortSignal): Promise<Frame<H>> {
  return (await answered(address(runPath(run, what), given), frame, signal)) as Frame<H>;
}
