// Where one is: the view and all its settings, kept in the URL's fragment, so a view can be shared.
//   #/layers?runs=0f3a,77b1&kind=gradient&stat=rms

import { useStore, store } from "./store";

export const VIEWS = [
  ["findings", "Findings"],
  ["overview", "Overview"],
  ["layers", "Layers"],
  ["depth", "Depth"],
  ["updates", "Updates"],
  ["distributions", "Distributions"],
  ["attention", "Attention"],
  ["series", "Series"],
  ["runs", "Runs"],
] as const;
export type View = (typeof VIEWS)[number][0];

export interface Place {
  view: View;
  settings: Readonly<Record<string, string>>;
}

/** Settings that mean the same in every view and go along when the view changes. */
const SHARED = new Set(["runs", "pins", "x", "open", "smooth", "align"]);

export function parsePlace(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const view = VIEWS.find(([name]) => name === path)?.[0] ?? "findings";
  return { view, settings: Object.fromEntries(new URLSearchParams(query)) };
}

export function placeText({ view, settings }: Place): string {
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value !== ""));
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%2C", ",").replaceAll("%3A", ":");
  return `#/${view}${text && `?${text}`}`;
}

export const place = store<Place>(parsePlace(location.hash));
window.addEventListener("hashchange", () => place.set(parsePlace(location.hash)));

type Change = Record<string, string | number | null | undefined>;

function write(next: Place, push: boolean): void {
  const text = placeText(next);
  if (text === location.hash) return;
  if (push) history.pushState(null, "", text);
  else history.replaceState(null, "", text);
  place.set(next);
}

function changed(settings: Place["settings"], change: Change): Record<string, string> {
  const next = { ...settings };
  for (const [name, value] of Object.entries(change))
    if (value === null || value === undefined || value === "") delete next[name];
    else next[name] = String(value);
  return next;
}

/** Change settings of this view; `push` makes a step that "back" undoes. */
export function set(change: Change, push = false): void {
  const { view, settings } = place.get();
  write({ view, settings: changed(settings, change) }, push);
}

/** Go to a view; shared settings go along. */
export function go(view: View, change: Change = {}): void {
  write({ view, settings: changed(settingsFor(view), change) }, true);
  window.scrollTo(0, 0);
}

/** The address of a view, for links. */
export function link(view: View, change: Change = {}): string {
  return placeText({ view, settings: changed(settingsFor(view), change) });
}

function settingsFor(view: View): Record<string, string> {
  const { view: current, settings } = place.get();
  if (view === current) return { ...settings };
  return Object.fromEntries(
    Object.entries(settings).filter(([name]) => SHARED.has(name) && name !== "open"),
  );
}

export function usePlace(): Place {
  return useStore(place);
}

export function useSetting(name: string, otherwise = ""): [string, (value: string) => void] {
  const { settings } = usePlace();
  return [settings[name] ?? otherwise, (value) => set({ [name]: value === otherwise ? "" : value })];
}

/** Lists in one setting: parts are escaped, commas part them. */
export const splitList = (text: string | undefined): string[] =>
  text ? text.split(",").map((part) => part.replace(/~(c|~)/g, (_, mark) => (mark === "c" ? "," : "~"))) : [];
export const joinList = (parts: readonly string[]): string =>
  parts.map((part) => part.replaceAll("~", "~~").replaceAll(",", "~c")).join(",");

export function usePins(): [string[], (key: string) => void] {
  const { settings } = usePlace();
  const pins = splitList(settings["pins"]);
  const toggle = (key: string): void =>
    set({ pins: joinList(pins.includes(key) ? pins.filter((pin) => pin !== key) : [...pins, key]) });
  return [pins, toggle];
}
