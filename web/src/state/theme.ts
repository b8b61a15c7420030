// Light or dark: the system's choice until somebody chooses.

import { store, useStore } from "./store";

export type Theme = "light" | "dark";
const NAME = "torchvitals.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen(): Theme | null {
  try {
    const value = localStorage.getItem(NAME);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null; // storage is switched off
  }
}

const now = (): Theme => chosen() ?? (system.matches ? "dark" : "light");
export const theme = store<Theme>(now());

function apply(): void {
  document.documentElement.dataset["theme"] = now();
  theme.set(now());
}
system.addEventListener("change", apply);
apply();

export function toggleTheme(): void {
  try {
    localStorage.setItem(NAME, theme.get() === "dark" ? "light" : "dark");
  } catch {
    // then it lasts until the page is closed
  }
  document.documentElement.dataset["theme"] = theme.get() === "dark" ? "light" : "dark";
  theme.set(document.documentElement.dataset["theme"] as Theme);
}

export const useTheme = (): Theme => useStore(theme);

/** A colour of the style sheet, for canvases. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
