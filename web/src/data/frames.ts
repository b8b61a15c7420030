// The same question to several runs.

import { useEffect, useState } from "preact/hooks";
import { useStore } from "../state/store";
import { askFrame, Refused, type Arguments } from "./ask";
import type { Frame } from "./frame";
import { connections, useNows } from "./live";

export interface Several<H> {
  /** In the order of the runs; undefined until its answer is there, or when there is none. */
  frames: (Frame<H> | undefined)[];
  errors: (string | undefined)[];
  loading: boolean;
}

export function useFrames<H>(runs: readonly string[], what: string, given: Arguments, visible = true): Several<H> {
  const nows = useNows();
  const again = useStore(connections);
  const [answers, setAnswers] = useState<Record<string, { about: string; frame?: Frame<H>; error?: string }>>({});
  const about = JSON.stringify([what, given]);
  const versions = runs.map((run) => nows[run]?.version ?? "").join();
  useEffect(() => {
    if (!visible) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      for (const run of runs)
        askFrame<H>(run, what, given, abort.signal).then(
          (frame) => setAnswers((before) => ({ ...before, [run]: { about, frame } })),
          (error: unknown) => {
            if (abort.signal.aborted) return;
            // The server is away: what is drawn stays, a new connection asks again.
            const refused = error instanceof Refused;
            const text = refused ? error.message : "The server does not answer.";
            setAnswers((before) => (!refused && before[run]?.frame ? before : { ...before, [run]: { about, error: text } }));
          },
        );
    }, 30);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [runs.join(), about, versions, again, visible]);
  const mine = runs.map((run) => answers[run]);
  return {
    frames: mine.map((answer) => answer?.frame),
    errors: mine.map((answer) => answer?.error),
    loading: runs.length > 0 && mine.every((answer) => !answer),
  };
}
