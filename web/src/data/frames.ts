// The same question to several runs.

import { useEffect, useRef, useState } from "preact/hooks";
import { useStore } from "../state/store";
import { askFrame, Refused, type Arguments } from "./ask";
import { startAsking, type Asker } from "./asker";
import type { Frame } from "./frame";
import { connections, useNows } from "./live";

export interface Several<H> {
  /** In the order of the runs; undefined until its answer is there, or when there is none. */
  frames: (Frame<H> | undefined)[];
  errors: (string | undefined)[];
  loading: boolean;
}

export function useFrames<H extends { version: string }>(runs: readonly string[], what: string, given: Arguments, visible = true): Several<H> {
  const nows = useNows();
  const again = useStore(connections);
  const [answers, setAnswers] = useState<Record<string, { about: string; frame?: Frame<H>; error?: string }>>({});
  const askers = useRef<Record<string, Asker>>({});
  const about = JSON.stringify([what, given]);
  const versionOf = (run: string): string => nows[run]?.version ?? "";
  useEffect(() => {
    if (!visible) return;
    // A slider may still be moving.
    const timer = setTimeout(() => {
      for (const run of runs)
        askers.current[run] = startAsking<Frame<H>>(
          {
            ask: (signal) => askFrame<H>(run, what, given, signal),
            versionOf: ({ header }) => header.version,
            give: (frame) => setAnswers((before) => ({ ...before, [run]: { about, frame } })),
            fail(error) {
              // The server is away: what is drawn stays, a new connection asks again.
              const refused = error instanceof Refused;
              const text = refused ? error.message : "The server does not answer.";
              setAnswers((before) => (!refused && before[run]?.frame ? before : { ...before, [run]: { about, error: text } }));
            },
          },
          { version: versionOf(run), again },
        );
    }, 30);
    return () => {
      clearTimeout(timer);
      for (const asker of Object.values(askers.current)) asker.stop();
      askers.current = {};
    };
  }, [runs.join(), about, visible]);
  useEffect(() => {
    for (const [run, asker] of Object.entries(askers.current)) asker.changed({ version: versionOf(run), again });
  }, [runs.map(versionOf).join(), again]);
  const mine = runs.map((run) => answers[run]);
  return {
    frames: mine.map((answer) => answer?.frame),
    errors: mine.map((answer) => answer?.error),
    loading: runs.length > 0 && mine.every((answer) => !answer),
  };
}
