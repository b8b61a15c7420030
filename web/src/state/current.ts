// The run that is looked at, those beside it, and what happened in it: for every view.

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { ChartRun } from "../parts/SeriesChart";
import type { Findings, Run, RunLine } from "../data/types";
import type { Mark } from "../draw/marks";
import type { Answer } from "../data/ask";

export interface Current {
  run: Run;
  /** The run and those it is compared with. */
  runs: readonly ChartRun[];
  /** The run alone. */
  alone: readonly ChartRun[];
  all: readonly RunLine[];
  findings: Answer<Findings>;
  marks: readonly Mark[];
}

export const CurrentContext = createContext<Current | null>(null);

export function useCurrent(): Current {
  const current = useContext(CurrentContext);
  if (!current) throw new Error("there is no run here");
  return current;
}
