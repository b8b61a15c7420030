import { expect, test, vi } from "vitest";
import { startAsking, type Wanted } from "../src/data/asker";

interface Said {
  version: string;
}

function asked(first: Wanted, had?: string) {
  const open: ((value: Said) => void)[] = [];
  const given: [Said, string][] = [];
  const failed: unknown[] = [];
  const signals: AbortSignal[] = [];
  const asker = startAsking<Said>(
    {
      ask: (signal) => {
        signals.push(signal);
        return new Promise((resolve) => open.push(resolve));
      },
      versionOf: ({ version }) => version,
      give: (value, mark) => given.push([value, mark]),
      fail: (error) => failed.push(error),
    },
    first,
    had,
    0,
  );
  const answer = async (version: string): Promise<void> => {
    open.shift()!({ version });
    await vi.waitFor(() => expect(given.length + failed.length).toBeGreaterThan(0));
    await Promise.resolve();
  };
  return { asker, open, given, signals, answer };
}

test("an answer that is slower than the run is waited for, and asked again once", async () => {
  const { asker, open, given, signals, answer } = asked({ version: "a", again: 0 });
  asker.changed({ version: "b", again: 0 });
  asker.changed({ version: "c", again: 0 });
  expect(open.length).toBe(1);
  expect(signals[0]!.aborted).toBe(false);
  await answer("a");
  expect(given).toEqual([[{ version: "a" }, "a#0"]]);
  await vi.waitFor(() => expect(open.length).toBe(1));
  expect(signals.length).toBe(2);
});

test("what the first message says is no reason to ask again", async () => {
  const { asker, open, answer } = asked({ version: "", again: 0 });
  await answer("a");
  asker.changed({ version: "a", again: 0 });
  expect(open.length).toBe(0);
  asker.changed({ version: "b", again: 0 });
  await vi.waitFor(() => expect(open.length).toBe(1));
});

test("a new connection asks again, a kept answer does not", async () => {
  const { asker, open } = asked({ version: "a", again: 1 }, "a#1");
  expect(open.length).toBe(0);
  asker.changed({ version: "a", again: 2 });
  expect(open.length).toBe(1);
});

test("nothing is given after the end", async () => {
  const { asker, open, given, signals } = asked({ version: "a", again: 0 });
  asker.stop();
  expect(signals[0]!.aborted).toBe(true);
  open[0]!({ version: "a" });
  await Promise.resolve();
  await Promise.resolve();
  expect(given).toEqual([]);
});
