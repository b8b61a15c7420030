// Charts as files. Each is an SVG with everything a reader needs: title, axes, legend; a PNG is
// either the canvas that is seen or the SVG, drawn large.

import { axisText, stack, valuesOf, type Limit, type Line } from "./Lines";
import { BAD, flagText } from "../data/frame";
import { BAD_CSS } from "./colours";
import { linear, logarithmic, wantsLog, niceSplits } from "./scale";
import { number } from "./numbers";
import { colour as css } from "../state/theme";

export type Save = Record<"PNG" | "SVG", () => void>;

function give(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const fileName = (name: string, ending: string): string => `${name.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "chart"}.${ending}`;

export const escaped = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

const HEAD = 28;

interface Picture {
  width: number;
  height: number;
  /** Elements, from below the title on. */
  body: string;
}

function svgText({ width, height, body }: Picture, name: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height + HEAD}" viewBox="0 0 ${width} ${height + HEAD}" font-family="system-ui, sans-serif" font-size="11"><rect width="100%" height="100%" fill="${css("surface")}"/><text x="10" y="18" font-size="13" font-weight="600" fill="${css("ink")}">${escaped(name)}</text><g transform="translate(0 ${HEAD})">${body}</g></svg>`;
}

/** Both kinds of file from one drawing. */
export function savePicture(draw: () => Picture | undefined, name: string): Save {
  return {
    SVG: () => {
      const picture = draw();
      if (picture) give(new Blob([svgText(picture, name)], { type: "image/svg+xml" }), fileName(name, "svg"));
    },
    PNG: () => {
      const picture = draw();
      if (picture) void rasterised(picture, name).then((blob) => blob && give(blob, fileName(name, "png")));
    },
  };
}

async function rasterised(picture: Picture, name: string): Promise<Blob | null> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(picture, name))}`;
  await image.decode();
  const copy = document.createElement("canvas");
  const ratio = Math.max(devicePixelRatio, 2);
  copy.width = picture.width * ratio;
  copy.height = (picture.height + HEAD) * ratio;
  copy.getContext("2d")!.drawImage(image, 0, 0, copy.width, copy.height);
  return new Promise((resolve) => copy.toBlob(resolve));
}

export function savePng(canvas: HTMLCanvasElement, name: string): void {
  // On paper of the page's colour, with the title: a transparent picture is unreadable elsewhere.
  const ratio = canvas.clientWidth ? canvas.width / canvas.clientWidth : 1;
  const head = Math.round(HEAD * ratio);
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height + head;
  const context = copy.getContext("2d")!;
  context.fillStyle = css("surface");
  context.fillRect(0, 0, copy.width, copy.height);
  context.fillStyle = css("ink");
  context.font = `600 ${13 * ratio}px system-ui, sans-serif`;
  context.fillText(name, 8 * ratio, 18 * ratio);
  context.drawImage(canvas, 0, head);
  copy.toBlob((blob) => blob && give(blob, fileName(name, "png")));
}

/** A canvas that has its axes in it, as it is seen. */
export function saveCanvas(canvas: () => HTMLCanvasElement | null, name: string): Save {
  const draw = (): Picture | undefined => {
    const seen = canvas();
    if (!seen) return undefined;
    const [width, height] = [seen.clientWidth || seen.width, seen.clientHeight || seen.height];
    return { width, height, body: `<image width="${width}" height="${height}" preserveAspectRatio="none" href="${seen.toDataURL("image/png")}"/>` };
  };
  return { ...savePicture(draw, name), PNG: () => canvas() && savePng(canvas()!, name) };
}

/** Coloured lines of pixels with the layers' names, steps and colours beside them. */
export interface HeatPicture {
  canvas: HTMLCanvasElement;
  row: number;
  names: readonly { label: string; depth: number }[];
  ticks: readonly { x: number; text: string }[];
  legend: { colours: readonly string[]; low: string; high: string };
}

export function saveHeat(seen: () => HeatPicture | null, name: string): Save {
  return savePicture(() => {
    const heat = seen();
    if (!heat) return undefined;
    const { canvas, row, names, ticks, legend } = heat;
    const left = 20 + Math.max(...names.map(({ label, depth }) => label.length * 6.2 + depth * 10));
    const [wide, high] = [canvas.clientWidth || canvas.width, names.length * row];
    const ink = css("ink-2");
    const parts = names.map(({ label, depth }, at) => `<text x="${8 + depth * 10}" y="${at * row + row - 5}" fill="${ink}">${escaped(label)}</text>`);
    parts.push(`<image x="${left}" width="${wide}" height="${high}" preserveAspectRatio="none" href="${canvas.toDataURL("image/png")}"/>`);
    for (const { x, text } of ticks) parts.push(`<text x="${left + x}" y="${high + 14}" text-anchor="middle" fill="${css("ink-3")}">${escaped(text)}</text>`);
    const cell = 180 / legend.colours.length;
    legend.colours.forEach((colour, at) => parts.push(`<rect x="${left + at * cell}" y="${high + 26}" width="${cell + 0.5}" height="8" fill="${colour}"/>`));
    parts.push(`<text x="${left}" y="${high + 46}" fill="${ink}">${escaped(legend.low)}</text><text x="${left + 180}" y="${high + 46}" text-anchor="end" fill="${ink}">${escaped(legend.high)}</text><rect x="${left + 200}" y="${high + 26}" width="12" height="8" fill="${BAD_CSS}"/><text x="${left + 218}" y="${high + 34}" fill="${ink}">${flagText(BAD)}</text>`);
    return { width: left + wide + 16, height: high + 56, body: parts.join("") };
  }, name);
}

/** What CSS gives a drawing of the page, written into a copy of it. */
const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "text-anchor"];

export function saveElement(find: () => SVGSVGElement | null | undefined, name: string, legend: readonly { label: string; colour: string; dash?: string }[] = []): Save {
  return savePicture(() => {
    const element = find();
    if (!element) return undefined;
    const copy = element.cloneNode(true) as SVGSVGElement;
    const [from, to] = [[...element.querySelectorAll("*")], [...copy.querySelectorAll("*")]];
    from.forEach((one, at) => {
      const style = getComputedStyle(one);
      for (const property of STYLED) to[at]!.setAttribute(property, style.getPropertyValue(property));
      for (const needless of ["class", "tabindex", "role", "aria-label"]) to[at]!.removeAttribute(needless);
    });
    const lines = legend.map(({ label, colour, dash }, at) => `<line x1="10" x2="32" y1="${at * 16 + 8}" y2="${at * 16 + 8}" stroke="${colour}" stroke-width="2" stroke-dasharray="${dash ?? ""}"/><text x="40" y="${at * 16 + 12}" fill="${css("ink-2")}">${escaped(label)}</text>`);
    const inside = [...copy.childNodes].map((one) => new XMLSerializer().serializeToString(one)).join("");
    return {
      width: element.clientWidth, height: element.clientHeight + legend.length * 16 + 8,
      body: `${lines.join("")}<g transform="translate(0 ${legend.length * 16 + 8})">${inside}</g>`,
    };
  }, name);
}

export interface LinesLook {
  axis: string;
  log?: boolean | undefined;
  format?: (value: number) => string;
  stacked?: boolean;
  fromZero?: boolean;
  band?: [number, number] | undefined;
  limits?: readonly Limit[];
}

export function saveLinesSvg(given: readonly Line[], name: string, look: LinesLook): void {
  savePicture(() => drawnLines(given, look), name).SVG();
}

function drawnLines(given: readonly Line[], { axis, log, format = (value) => number(value, 3), stacked, fromZero, band, limits = [] }: LinesLook): Picture {
  const lines = stacked ? stack(given) : given;
  const listed = Math.min(lines.length, 12);
  const [width, plot, left, top, right] = [800, 300, 64, 6, 16];
  const also = limits.map((limit) => limit.value);
  const scale = !stacked && (log ?? wantsLog(valuesOf(lines))) ? logarithmic(valuesOf(lines), also) : linear(valuesOf(lines), also, stacked || fromZero);
  const xs = lines.flatMap((line) => [line.x[0] ?? NaN, line.x[line.x.length - 1] ?? NaN]).filter(Number.isFinite);
  const [from, to] = [Math.min(...xs), Math.max(...xs)];
  const px = (x: number): number => left + ((x - from) / (to - from || 1)) * (width - left - right);
  const [low, high] = scale.range;
  const py = (y: number): number => top + (1 - (Math.min(high, Math.max(low, y)) - low) / (high - low)) * (plot - top);
  const path = (line: Line, values: ArrayLike<number>): string => {
    let text = "";
    let pen = "M";
    for (let i = 0; i < values.length; i++) {
      const y = scale.to(values[i]!);
      if (y === null) pen = "M";
      else {
        text += `${pen}${px(line.x[i]!).toFixed(1)},${py(y).toFixed(1)}`;
        pen = "L";
      }
    }
    return text;
  };
  const parts: string[] = [];
  const ends = band?.map((value) => scale.to(value));
  if (ends && ends[0] !== null && ends[1] !== null) parts.push(`<rect x="${left}" width="${width - left - right}" y="${py(ends[1]!)}" height="${Math.max(0, py(ends[0]!) - py(ends[1]!))}" fill="${css("accent")}" fill-opacity="0.1"/>`);
  for (const split of scale.splits(low, high))
    parts.push(`<line x1="${left}" x2="${width - right}" y1="${py(split)}" y2="${py(split)}" stroke="${css("grid")}"/><text x="${left - 6}" y="${py(split) + 4}" text-anchor="end" fill="${css("ink-3")}">${escaped(scale.text(split, format))}</text>`);
  for (const split of niceSplits(from, to, 6))
    parts.push(`<text x="${px(split)}" y="${plot + 16}" text-anchor="middle" fill="${css("ink-3")}">${axisText(axis, split)}</text>`);
  lines.forEach((line, at) => {
    // The ends of the buckets too: a spike of one step must be seen.
    if (!stacked && lines.length <= 12)
      for (const edge of [line.low, line.high]) parts.push(`<path d="${path(line, edge)}" fill="none" stroke="${line.colour}" stroke-opacity="0.4" stroke-width="0.8"/>`);
    parts.push(`<path d="${path(line, line.last)}" fill="none" stroke="${line.colour}" stroke-width="1.5"${line.dash ? ` stroke-dasharray="${line.dash.join(" ")}"` : ""}/>`);
    for (let i = 0; i < (line.flags?.length ?? 0); i++)
      if (line.flags![i]! & BAD) parts.push(`<path d="M${px(line.x[i]!).toFixed(1)},${plot - 9}l-4,9h8z" fill="${BAD_CSS}"/>`);
    if (at < listed) parts.push(`<text x="${left}" y="${plot + 36 + at * 16}" fill="${line.colour}">${escaped(line.label)}</text>`);
  });
  for (const limit of limits) {
    const y = scale.to(limit.value);
    if (y !== null) parts.push(`<line x1="${left}" x2="${width - right}" y1="${py(y)}" y2="${py(y)}" stroke="${css("error")}" stroke-dasharray="6 4"/><text x="${left + 4}" y="${py(y) - 4}" fill="${css("error")}">${escaped(limit.label)}</text>`);
  }
  return { width, height: plot + 30 + listed * 16, body: parts.join("") };
}
