// Numbers as people read them: few digits, thin powers, units.

const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const superscript = (n: number): string =>
  (n < 0 ? "⁻" : "") + String(Math.abs(n)).replace(/\d/g, (digit) => SUPER[Number(digit)]!);

/** About `digits` digits: 2.31, 0.0042, 3.1×10⁻⁷, 12 400. */
export function number(value: number, digits = 3): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size >= 1e6 || size < 1e-3) {
    let power = Math.floor(Math.log10(size));
    let head = (size / 10 ** power).toPrecision(digits);
    if (Number(head) >= 10) {
      power += 1;
      head = (size / 10 ** power).toPrecision(digits);
    }
    head = trimmed(head);
    return head === "1" ? `${sign}10${superscript(power)}` : `${sign}${head}×10${superscript(power)}`;
  }
  if (size >= 1000) return sign + grouped(Math.round(size));
  const text = size.toPrecision(digits);
  return sign + (text.includes("e") ? String(Math.round(size)) : trimmed(text));
}

const trimmed = (text: string): string => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

/** 12 400: thin spaces between thousands. */
export function grouped(value: number): string {
  const text = String(Math.round(Math.abs(value)));
  return (value < 0 ? "−" : "") + (text.length > 4 ? text.replace(/\B(?=(\d{3})+$)/g, "\u202f") : text);
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1e-3) return `${number(seconds * 1e6, 2)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3, 3)} ms`;
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.round((minutes % 1440) / 60)} h`;
}

export function bytes(value: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${number(value, 3)} ${units[at]}`;
}

export function short(value: number): string {
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]] as const)
    if (size >= limit) return `${number(value / limit, 3)} ${unit}`;
  return number(value, 3);
}

export function ago(time: number): string {
  const seconds = Date.now() / 1000 - time;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(time * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

/** How a column's numbers are written: by the unit in its name. */
export function unitOf(key: string): (value: number) => string {
  const stat = key.slice(key.lastIndexOf("/") + 1);
  if (/bytes$/.test(stat)) return bytes;
  if (/_per_s$/.test(stat)) return (value) => `${short(value)}/s`;
  if (/_s$/.test(stat)) return (value) => duration(value);
  if (/(^|_)(frac|mfu)$/.test(stat)) return (value) => `${number(value * 100, 3)} %`;
  return (value) => number(value, 4);
}

export const percent = (share: number): string => `${Math.round(share * 100)} %`;

/** frozen_layer → Frozen layer, lr_too_high → LR too high. */
export function words(name: string): string {
  const text = name.replaceAll(/[_-]+/g, " ").replace(/^(lr|amp)\b/, (short) => short.toUpperCase());
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A column's name as a title: the whole model and summaries in words, everything else as it is. */
export function titleOf(key: string): string {
  const [kind = "", site = "", stat = ""] = key.split("/");
  if (site === "[root module]") return `${words(kind)} ${stat.replaceAll("_", " ")}`;
  if (kind === "summary" && stat) return `${words(site)}, ${stat}`;
  if (kind === "eval" && stat) return `${words(site)} ${stat}`;
  if (kind === "speed" && stat) return words(stat.replace(/_per_s$/, " per second"));
  if (kind === "optimizer" && stat === "lr") return site === "group0" ? "Learning rate" : `Learning rate, ${site}`;
  return key;
}

const LAYERED = /^(gradient|update|parameter|activation|optimizer|attention|gradient_before_clip|\w+_difference)\/(.+)\/([^/]+)$/;

/** A column of a layer in two parts: what it is, and where. */
export function labelOf(key: string): { title: string; where?: string } {
  const title = titleOf(key);
  const parts = title === key ? LAYERED.exec(key) : null;
  return parts ? { title: `${words(parts[1]!)} ${parts[3]!.replaceAll("_", " ")}`, where: parts[2]! } : { title };
}
