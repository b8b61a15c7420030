// Colours: a sequential scale (viridis), a diverging one, and lines, all told apart without red and green.

type Rgb = readonly [number, number, number];

const rgb = (hex: string): Rgb => {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
};

const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"].map(rgb);
const DIVERGING = ["#2c3f8f", "#3f6ab3", "#6f9bce", "#a9c6e2", "#e6e6e4", "#f0c6a0", "#e0965c", "#c2622b", "#8f3410"].map(rgb);

/** 256 colours as packed little-endian RGBA, for ImageData. */
function table(stops: readonly Rgb[]): Uint32Array {
  const out = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const share = at - low;
    const [a, b] = [stops[low]!, stops[low + 1]!];
    const mix = (c: number): number => Math.round(a[c]! + (b[c]! - a[c]!) * share);
    out[i] = pack(mix(0), mix(1), mix(2));
  }
  return out;
}

const pack = (r: number, g: number, b: number): number => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

export const SEQUENTIAL = table(VIRIDIS);
export const SIGNED = table(DIVERGING);
/** NaN and Inf: magenta, which neither scale has. */
export const BAD_COLOUR = pack(0xe6, 0x1c, 0x8c);
export const BAD_CSS = "#e61c8c";

export const css = (packed: number): string =>
  `rgb(${packed & 255} ${(packed >> 8) & 255} ${(packed >> 16) & 255})`;

export function packed(colour: string): number {
  if (colour.startsWith("#")) {
    const [r, g, b] = rgb(colour.length === 4 ? "#" + [...colour.slice(1)].map((c) => c + c).join("") : colour);
    return pack(r, g, b);
  }
  const parts = colour.match(/[\d.]+/g) ?? ["0", "0", "0"];
  return pack(Number(parts[0]), Number(parts[1]), Number(parts[2]));
}

/** Black or white, whichever is read better on it. */
export function inkOn(colour: number): string {
  const [r, g, b] = [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";
}
