// A report: the page with the answers about one run inside it, instead of a server.
// `torchvitals.dashboard.report` puts them there; what is not in it can't be asked for.

import { spelled, type Frame, type Numbers, readFrame } from "./frame";
import type { Attention, Loose, MatrixHeader, ProfileHeader, RunList, SeriesHeader } from "./types";

interface Recorded {
  json(question: string): unknown;
  frame<H>(question: string): Frame<H> | undefined;
  questions: readonly string[];
}

let recorded: Recorded | null = null;
let made: number | undefined;
export const isReport = (): boolean => recorded !== null;
/** When the report was made, seconds since the epoch. */
export const reportMade = (): number | undefined => made;

/** Look for answers in the page; before anything is asked. */
export async function loadRecorded(): Promise<void> {
  const text = document.getElementById("answers")?.textContent;
  if (!text) return;
  const bytes = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  recorded = unpacked(await new Response(plain).arrayBuffer());
  made = (recorded.json("runs") as RunList & { made: number }).made;
}

export function unpacked(buffer: ArrayBuffer): Recorded {
  const length = new DataView(buffer).getUint32(0, true);
  const decoder = new TextDecoder();
  const places = JSON.parse(decoder.decode(new Uint8Array(buffer, 4, length))) as Record<string, [number, number]>;
  const take = (question: string): ArrayBuffer | undefined => {
    const place = places[question];
    return place && buffer.slice(4 + length + place[0], 4 + length + place[0] + place[1]);
  };
  const frames = new Map<string, Frame<unknown>>();
  return {
    questions: Object.keys(places),
    json: (question) => {
      const found = take(question);
      return found && (JSON.parse(decoder.decode(found)) as unknown);
    },
    frame: <H>(question: string) => {
      const bytes = frames.has(question) ? undefined : take(question);
      if (bytes) frames.set(question, readFrame(bytes));
      return frames.get(question) as Frame<H> | undefined;
    },
  };
}

/** The answer to an address of the API, or an error that says what is missing. */
export function answerOf(url: string, from: Recorded = recorded!): unknown {
  const [path = "", query = ""] = url.split("?", 2);
  const given = new URLSearchParams(query);
  const what = path.split("/").slice(3).join("/") || (path.endsWith("/runs") ? "runs" : "run");
  const found =
    what === "series" ? seriesOf(from, given)
    : what === "matrix" ? matrixOf(from, given)
    : what === "profile" ? profileOf(from, given)
    : what === "attention" ? attentionOf(from, given)
    : what === "histograms" ? from.frame(`histograms/${given.get("kind")}/${given.get("site")}`)
    : what === "overview" ? from.frame("overview")
    : from.json(what);
  if (!found) throw new Error("This is not part of the report; vitals ui shows everything.");
  return found;
}

const whole = (from: Recorded, kind: string | null, stat: string | null): Frame<MatrixHeader> | undefined => from.frame<MatrixHeader>(`matrix/${kind}/${stat}`);

/** Positions of the steps that are asked for. */
function chosen(steps: Numbers, given: URLSearchParams): [number, number] {
  const [start, stop] = [Number(given.get("start") ?? -Infinity), Number(given.get("stop") ?? Infinity)];
  let from = 0;
  while (from < steps.length && steps[from]! < start) from += 1;
  let to = steps.length;
  while (to > from && steps[to - 1]! >= stop) to -= 1;
  return [from, to];
}

function seriesOf(from: Recorded, given: URLSearchParams): Frame<SeriesHeader> {
  const arrays: Record<string, Numbers> = {};
  const series = given.getAll("key").map((key, at): SeriesHeader["series"][number] => {
    const found = stored(from, key) ?? fromMatrix(from, key);
    if (!found) return { key, error: "This series is not part of the report; vitals ui shows it." };
    const [first, last] = chosen(found["steps"]!, given);
    for (const [name, values] of Object.entries(found)) arrays[`${at}.${name}`] = values.subarray(first, last);
    return { key, arrays: String(at) };
  });
  return { header: { run: "run", version: "", x: "step", series }, arrays };
}

function stored(from: Recorded, key: string): Record<string, Numbers> | undefined {
  for (const question of from.questions) {
    if (!question.startsWith("series/")) continue;
    const frame = from.frame<SeriesHeader>(question)!;
    const place = frame.header.series.find((one) => one.key === key)?.arrays;
    if (place === undefined) continue;
    const names = ["steps", "low", "high", "last", "flags", "count"];
    return Object.fromEntries(names.map((name) => [name, frame.arrays[`${place}.${name}`]!]));
  }
  return undefined;
}

/** A line of a heatmap: of each bucket only its largest value is known. */
function fromMatrix(from: Recorded, key: string): Record<string, Numbers> | undefined {
  const [kind, stat] = [key.slice(0, key.indexOf("/")), key.slice(key.lastIndexOf("/") + 1)];
  const frame = whole(from, kind, stat);
  const at = frame?.header.sites.indexOf(key.slice(kind.length + 1, key.length - stat.length - 1)) ?? -1;
  if (!frame || at < 0) return undefined;
  const count = frame.arrays["steps"]!.length;
  const [values, flags] = [frame.arrays["values"]!, frame.arrays["flags"]!].map((all) => all.subarray(at * count, (at + 1) * count));
  const there = Array.from(frame.arrays["steps"]!.keys()).filter((i) => !(flags![i]! & 128));
  const pick = (all: Numbers): Float64Array => Float64Array.from(there, (i) => all[i]!);
  const picked = pick(values!);
  return { steps: pick(frame.arrays["steps"]!), low: picked, high: picked, last: picked, flags: Uint8Array.from(there, (i) => flags![i]!), count: pick(values!).fill(1) };
}

function matrixOf(from: Recorded, given: URLSearchParams): Frame<MatrixHeader> | undefined {
  const frame = whole(from, given.get("kind"), given.get("stat"));
  if (!frame) return undefined;
  const steps = frame.arrays["steps"]!;
  const [first, last] = chosen(steps, given);
  if (last - first === steps.length || first === last) return frame;
  const cut = (all: Numbers): Numbers => {
    const made = all.slice(0, frame.header.sites.length * (last - first));
    frame.header.sites.forEach((_, site) => made.set(all.subarray(site * steps.length + first, site * steps.length + last), site * (last - first)));
    return made;
  };
  return { header: frame.header, arrays: { steps: steps.slice(first, last), values: cut(frame.arrays["values"]!), flags: cut(frame.arrays["flags"]!) } };
}

/** The last bucket that begins at or before the step and in which something was measured. */
function column({ header, arrays }: Frame<MatrixHeader>, step: number): number {
  const [steps, flags] = [arrays["steps"]!, arrays["flags"]!];
  let at = steps.length - 1;
  const empty = (): boolean => header.sites.every((_, site) => flags[site * steps.length + at]! & 128);
  while (at > 0 && (steps[at]! > step || empty())) at -= 1;
  return at;
}

function profileOf(from: Recorded, given: URLSearchParams): Frame<ProfileHeader> | undefined {
  const frame = whole(from, given.get("kind"), given.get("stat"));
  if (!frame) return undefined;
  const { header, arrays } = frame;
  const all = arrays["steps"]!;
  const asked = given.getAll("step").map(Number);
  const columns = (asked.length ? asked : [Infinity]).map((step) => column(frame, step));
  const take = (values: Numbers): number[] => columns.flatMap((at) => header.sites.map((_, site) => values[site * all.length + at]!));
  return {
    header: { run: "run", version: "", kind: header.kind, stat: header.stat, sites: header.sites, asked, steps: columns.map((at) => all[at]!), all_steps: all.length },
    arrays: { values: Float32Array.from(take(arrays["values"]!)), flags: Uint8Array.from(take(arrays["flags"]!)) },
  };
}

function attentionOf(from: Recorded, given: URLSearchParams): Attention | undefined {
  const frames = from.questions.filter((one) => one.startsWith("matrix/attention/")).map((one) => from.frame<MatrixHeader>(one)!);
  if (!frames[0]) return undefined;
  const heads = frames[0].header.sites.map((site) => /^(.+)\.head_(\d+)$/.exec(site)).filter((match) => match !== null);
  const layers = [...new Set(heads.map((match) => match[1]!))];
  const width = Math.max(...heads.map((match) => Number(match[2]) + 1));
  const step = Number(given.get("step") ?? Infinity);
  const stats = frames.map((frame): [string, Loose[][]] => {
    const at = column(frame, step);
    const count = frame.arrays["steps"]!.length;
    const cell = (site: string): Loose => {
      const place = frame.header.sites.indexOf(site);
      return place < 0 ? null : spelled(frame.arrays["flags"]![place * count + at]!, frame.arrays["values"]![place * count + at]!);
    };
    return [frame.header.stat, layers.map((layer) => Array.from({ length: width }, (_, head) => cell(`${layer}.head_${head}`)))];
  });
  return { run: "run", version: "", step: frames[0].arrays["steps"]![column(frames[0], step)]!, layers, num_heads: width, stats: Object.fromEntries(stats) };
}
