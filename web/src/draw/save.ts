// Charts as files: PNG of what is drawn, SVG of lines (drawn again) and of heatmaps (the picture inside).

import { axisText, type Line } from "./Lines";
import { linear, logarithmic, wantsLog, niceSplits } from "./scale";
import { number } from "./numbers";
import { colour as css } from "../state/theme";

function give(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const fileName = (name: string, ending: string): string => `${name.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "chart"}.${ending}`;

const escaped = (text: string): string =>
  text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

export function savePng(canvas: HTMLCanvasElement, name: string): void {
  // On paper of the page's colour, with the title: a transparent picture is unreadable elsewhere.
  const ratio = canvas.clientWidth ? canvas.width / canvas.clientWidth : 1;
  const head = Math.round(28 * ratio);
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

function svg(width: number, height: number, name: string, body: string): Blob {
  const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="11"><rect width="100%" height="100%" fill="${css("surface")}"/><text x="10" y="18" font-size="13" font-weight="600" fill="${css("ink")}">${escaped(name)}</text>${body}</svg>`;
  return new Blob([text], { type: "image/svg+xml" });
}

export function saveHeatSvg(canvas: HTMLCanvasElement, name: string): void {
  const [width, height] = [canvas.width, canvas.height];
  const body = `<image x="0" y="28" width="${width}" height="${height}" href="${canvas.toDataURL("image/png")}"/>`;
  give(svg(width, height + 28, name, body), fileName(name, "svg"));
}

export function saveLinesSvg(lines: readonly Line[], name: string, axis: string, log: boolean | undefined, format = (value: number) => number(value, 3)): void {
  const [width, height, left, top, right, bottom] = [800, 360, 64, 32, 16, 28 + 16 * Math.min(lines.length, 12)];
  const values = lines.flatMap((line) => [...Array.from(line.low), ...Array.from(line.high), ...Array.from(line.last)]).filter(Number.isFinite);
  const scale = (log ?? wantsLog(values)) ? logarithmic(values) : linear(values);
  const xs = lines.flatMap((line) => [line.x[0] ?? NaN, line.x[line.x.length - 1] ?? NaN]).filter(Number.isFinite);
  const [from, to] = [Math.min(...xs), Math.max(...xs)];
  const px = (x: number): number => left + ((x - from) / (to - from || 1)) * (width - left - right);
  const [low, high] = scale.range;
  const py = (y: number): number => top + (1 - (y - low) / (high - low)) * (height - top - bottom);
  const parts: string[] = [];
  for (const split of scale.splits(low, high))
    parts.push(`<line x1="${left}" x2="${width - right}" y1="${py(split)}" y2="${py(split)}" stroke="${css("grid")}"/><text x="${left - 6}" y="${py(split) + 4}" text-anchor="end" fill="${css("ink-3")}">${escaped(scale.text(split, format))}</text>`);
  for (const split of niceSplits(from, to, 6))
    parts.push(`<text x="${px(split)}" y="${height - bottom + 16}" text-anchor="middle" fill="${css("ink-3")}">${axisText(axis, split)}</text>`);
  lines.forEach((line, at) => {
    let path = "";
    let pen = "M";
    for (let i = 0; i < line.last.length; i++) {
      const y = scale.to(line.last[i]!);
      if (y === null) pen = "M";
      else {
        path += `${pen}${px(line.x[i]!).toFixed(1)},${py(y).toFixed(1)}`;
        pen = "L";
      }
    }
    parts.push(`<path d="${path}" fill="none" stroke="${line.colour}" stroke-width="1.5"/>`);
    if (at < 12) parts.push(`<text x="${left}" y="${height - bottom + 34 + at * 16}" fill="${line.colour}">${escaped(line.label)}</text>`);
  });
  give(svg(width, height + 12, name, parts.join("")), fileName(name, "svg"));
}
