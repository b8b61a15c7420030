// One question, asked again whenever the run has moved on: one at a time, and not too often.

/** What the page knows: the version there is ("" before the first message), and which connection. */
export interface Wanted {
  version: string;
  again: number;
}

export const markOf = ({ version, again }: Wanted): string => `${version}#${again}`;

/** Milliseconds between two questions of the same kind: the eye needs no more. */
const PAUSE = 500;

interface Question<T> {
  ask(signal: AbortSignal): Promise<T>;
  /** The version that an answer is of. */
  versionOf(value: T): string;
  /** `mark`: of what the answer is about. */
  give(value: T, mark: string): void;
  fail(error: unknown): void;
}

export interface Asker {
  changed(wanted: Wanted): void;
  stop(): void;
}

/** `had`: the mark of an answer that is there already. */
export function startAsking<T>(question: Question<T>, first: Wanted, had?: string, pause = PAUSE): Asker {
  const abort = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let busy = false;
  let at = -Infinity;
  let wanted = first;
  let got = had;

  async function go(): Promise<void> {
    busy = true;
    at = performance.now();
    const mine = wanted;
    got = markOf(mine);
    try {
      const value = await question.ask(abort.signal);
      if (abort.signal.aborted) return;
      // Before the first message it is not known which version there is: the answer says it.
      if (!mine.version) got = markOf({ version: question.versionOf(value), again: mine.again });
      question.give(value, got);
    } catch (error) {
      if (abort.signal.aborted) return;
      question.fail(error);
    }
    busy = false;
    next();
  }

  // An answer that takes longer than the run's next step must still arrive: it is waited for.
  function next(): void {
    clearTimeout(timer);
    if (busy || abort.signal.aborted) return;
    const unknown = !wanted.version && got !== undefined && got.endsWith(`#${wanted.again}`);
    if (unknown || got === markOf(wanted)) return;
    const wait = at + pause - performance.now();
    if (wait > 0) timer = setTimeout(go, wait);
    else void go();
  }

  next();
  return {
    changed(now) {
      wanted = now;
      next();
    },
    stop() {
      clearTimeout(timer);
      abort.abort();
    },
  };
}
