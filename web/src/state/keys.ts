// The keyboard: digits change the view, a few letters do the rest.

import { useEffect } from "preact/hooks";
import { store } from "./store";
import { go, place, set, VIEWS } from "./place";
import { toggleTheme } from "./theme";

export const helpOpen = store(false);

export const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["1 … 9", "go to a view, in the order of the list"],
  ["/", "search all series"],
  ["j  k", "next and previous finding"],
  ["[  ]", "previous and next run"],
  ["t", "light or dark"],
  ["0", "show all steps again after zooming"],
  ["← →", "on a chart: read values; Shift moves by ten"],
  ["↑ ↓ ← →", "on the tree of layers: move, fold, unfold; Enter opens"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.matches("input, select, textarea") || target.isContentEditable);
}

/** What was typed after "/" before the search field was there: nothing of it gets lost. */
let typedAhead: string | null = null;

/** The search field is asked for (by "/") or has just been drawn: whichever is last gives it the focus. */
export function takeSearch(): void {
  const field = document.getElementById("search");
  if (typedAhead === null || !(field instanceof HTMLInputElement)) return;
  typedAhead = null;
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
}

export function useShortcuts(): void {
  useEffect(() => {
    const heard = (event: KeyboardEvent): void => {
      if (event.key === "Escape") {
        typedAhead = null;
        if (helpOpen.get()) helpOpen.set(false);
        else if (place.get().settings["open"]) set({ open: "" });
        else if (typing(event.target)) (event.target as HTMLElement).blur();
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (place.get().view !== "series") typedAhead = null;
      if (typedAhead !== null && event.key.length === 1) {
        typedAhead += event.key;
        set({ search: typedAhead });
        event.preventDefault();
        return;
      }
      const digit = Number(event.key);
      if (digit >= 1 && digit <= VIEWS.length) go(VIEWS[digit - 1]![0]);
      else if (event.key === "/") {
        go("series");
        typedAhead = "";
        takeSearch();
      } else if (event.key === "j" || event.key === "k") click(event.key === "j" ? "next" : "previous");
      else if (event.key === "[" || event.key === "]") click(event.key === "]" ? "next-run" : "previous-run");
      else if (event.key === "t") toggleTheme();
      else if (event.key === "0") set({ x: "" });
      else if (event.key === "?") helpOpen.set(!helpOpen.get());
      else return;
      event.preventDefault();
    };
    window.addEventListener("keydown", heard);
    return () => window.removeEventListener("keydown", heard);
  }, []);
}

/** Views say by an event what their keys do: `window.dispatchEvent(new CustomEvent("vitals:next"))`. */
function click(name: string): void {
  window.dispatchEvent(new CustomEvent(`vitals:${name}`));
}

export function useCommand(name: string, run: () => void): void {
  useEffect(() => {
    window.addEventListener(`vitals:${name}`, run);
    return () => window.removeEventListener(`vitals:${name}`, run);
  });
}
