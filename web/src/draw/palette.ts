// Colours of lines, for the theme that is on.

import { theme } from "../state/theme";
import { css, SEQUENTIAL } from "./colours";

/** For lines beside each other (Okabe and Ito's palette, the dim ones brightened). */
const LINES = {
  light: ["#0f8b8d", "#d55e00", "#7b61c9", "#b88500", "#3b82cf", "#c0487f", "#4f9d3a", "#7b828b"],
  dark: ["#45c4c1", "#ff9248", "#ac98f5", "#e5b93c", "#78b4f5", "#f085b4", "#8dcf76", "#a3abb3"],
};
export const lineColour = (index: number): string => LINES[theme.get()][index % LINES.light.length]!;

/** For many lines in an order: first dark, last bright. */
export function rampColour(index: number, count: number): string {
  const share = count < 2 ? 0.4 : index / (count - 1);
  const from = theme.get() === "dark" ? 70 : 20;
  return css(SEQUENTIAL[Math.round(from + share * (theme.get() === "dark" ? 185 : 190))]!);
}
