// Layer × step: one picture instead of thousands of charts.

import { useMemo, useRef } from "preact/hooks";
import { useFrame } from "../data/ask";
import { keyText, parseKey } from "../data/key";
import type { MatrixHeader } from "../data/types";
import { Heatmap } from "../draw/Heatmap";
import { unitOf, words } from "../draw/numbers";
import { saveHeat, type HeatPicture } from "../draw/save";
import { tintFor, type TintKind } from "../draw/tint";
import { buildTree, firstDepth, isLayer, typesOf, type Node } from "../draw/tree";
import { Card } from "../parts/Card";
import { Bar, pattern, TextField, Toggle } from "../parts/controls";
import { openSeries, useRange } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useVisible } from "../parts/visible";
import { useCurrent } from "../state/current";
import { joinList, set, splitList, usePlace } from "../state/place";
import { KindAndStat, picked } from "./pick";

export function LayersView() {
  const { run } = useCurrent();
  const { settings } = usePlace();
  const [kind, stat] = picked(run, settings["kind"], settings["stat"]);
  const filter = settings["filter"] ?? "";
  const tint = (settings["tint"] as TintKind | "relative" | undefined) ?? tintFor(stat);
  return (
    <div class="view">
      <h1 class="hidden">Layers over steps</h1>
      <Bar>
        <KindAndStat run={run} kind={kind} stat={stat} onChange={(change) => set({ ...change, tint: "" })} />
        <TextField label="Layers" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={pattern(filter).problem} />
        <Toggle
          label="Colour" value={tint} onChange={(next) => set({ tint: next === tintFor(stat) ? "" : next })}
          options={[...(tintFor(stat) === "signed" ? ([["signed", "± log"]] as const) : ([["log", "log"]] as const)), ["linear", "linear"], ["relative", "own median"]]}
        />
      </Bar>
      <LayerHeat kind={kind} stat={stat} filter={filter} tint={tint} />
    </div>
  );
}

export function LayerHeat({ kind, stat, filter = "", tint, title }: { kind: string; stat: string; filter?: string; tint: TintKind | "relative"; title?: string }) {
  const { run, marks } = useCurrent();
  const { settings } = usePlace();
  const [element, visible] = useVisible<HTMLDivElement>();
  const [range] = useRange();
  const { value, error, loading } = useFrame<MatrixHeader>(
    run.id, "matrix", { kind, stat, points: 900, ...(range && { start: range[0], stop: range[1] + 1 }) }, visible && !!stat,
  );
  const picture = useRef<(() => HeatPicture | null) | null>(null);
  const tree = useMemo(() => {
    if (!value) return null;
    const { test } = pattern(filter);
    const all = value.header.sites;
    // Sites that are left out keep their place in the matrix: the tree holds positions in it.
    const types = typesOf(run);
    const made = buildTree(all, types);
    return filter ? pruned(made, (site) => test(all[site]!)) : made;
  }, [value, filter, run.models]);
  const fits = useMemo(() => (tree ? firstDepth(tree, 64) : 1), [tree]);
  // Heads are what one wants to see of attention.
  const heads = kind === "attention" && (value?.header.sites.length ?? 0) <= 200;
  const flipped = splitList(settings["fold"]);
  const opens = (node: Node): boolean => (filter || heads ? true : node.depth < fits && !isLayer(node));
  const isOpen = (node: Node): boolean => opens(node) !== flipped.includes(node.name);
  const flip = (open: (node: Node) => boolean): void =>
    set({ fold: joinList(everyNode(tree!).filter((node) => node.children.length && opens(node) !== open(node)).map((node) => node.name)) });
  const toggle = (node: Node): void =>
    set({ fold: joinList(flipped.includes(node.name) ? flipped.filter((name) => name !== node.name) : [...flipped, node.name]) });
  const pick = (node: Node): void => {
    if (node.site >= 0) openSeries(keyText({ kind, site: node.name, stat }));
    else if (node.children.length) toggle(node);
  };
  const steps = value?.arrays["steps"];
  const name = title ?? `${words(kind)} ${stat}`;
  return (
    <div ref={element}>
      <Card
        title={name}
        note={value ? `${value.header.sites.length} places, ${steps!.length} steps drawn` : undefined}
        actions={
          <>
            <button class="tool" title="Unfold all" aria-label="Unfold all layers" onClick={() => tree && flip(() => true)}>unfold</button>
            <button class="tool" title="Fold to modules" aria-label="Fold layers" onClick={() => tree && flip((node) => node.depth < 2 && !isLayer(node))}>fold</button>
          </>
        }
        save={saveHeat(() => picture.current?.() ?? null, name)}
      >
        {error ? <Problem text={error} /> : !value || !tree ? (
          loading || !visible ? <Loading what="Loading the heatmap" height={420} asleep={!visible} /> : <Empty title="Nothing was measured of this" />
        ) : !tree.below.length ? <Empty title="No layer matches">{filter}</Empty> : (
          <Heatmap
            name={name} tree={tree} steps={steps!} values={value.arrays["values"]!} flags={value.arrays["flags"]!}
            tint={tint === "relative" ? "log" : tint} relative={tint === "relative"} isOpen={isOpen} onToggle={toggle} onPick={pick}
            picked={settings["open"] ? parseKey(settings["open"], run.columns).site : undefined}
            marks={marks} format={unitOf(stat)} onPicture={(made) => (picture.current = made)}
          />
        )}
      </Card>
    </div>
  );
}

function everyNode(node: Node): Node[] {
  return [node, ...node.children.flatMap(everyNode)];
}

/** The tree with only those branches that hold a wanted site. */
function pruned(node: Node, wanted: (site: number) => boolean): Node {
  const children = node.children.map((child) => pruned(child, wanted)).filter((child) => child.below.length);
  const own = node.site >= 0 && wanted(node.site);
  return { ...node, children, site: own ? node.site : -1, below: node.below.filter(wanted) };
}
