// The model as a tree of sites, in depth order, for one kind of column.

import { ROOT } from "../data/root";
import type { Run } from "../data/types";

export interface Node {
  /** Its full name: a module, a parameter or a head. */
  name: string;
  /** The last part of it. */
  label: string;
  depth: number;
  parent: Node | null;
  children: Node[];
  /** Where its own column stands among the sites that are drawn; -1 when it has none. */
  site: number;
  /** Sites at or below it. */
  below: number[];
  type: string;
}

/** A tree of dotted names; nodes stand in the order in which they first appear. */
export function buildTree(sites: readonly string[], types: ReadonlyMap<string, string> = new Map()): Node {
  const root: Node = { name: ROOT, label: "model", depth: 0, parent: null, children: [], site: -1, below: [], type: types.get(ROOT) ?? "" };
  const nodes = new Map<string, Node>([[ROOT, root]]);
  const find = (name: string): Node => {
    const known = nodes.get(name);
    if (known) return known;
    const dot = name.lastIndexOf(".");
    const parent = dot > 0 ? find(name.slice(0, dot)) : root;
    const node: Node = {
      name, label: dot > 0 ? name.slice(dot + 1) : name, depth: parent.depth + 1,
      parent, children: [], site: -1, below: [], type: types.get(name) ?? "",
    };
    parent.children.push(node);
    nodes.set(name, node);
    return node;
  };
  sites.forEach((site, index) => {
    const node = find(site);
    node.site = index;
    for (let up: Node | null = node; up; up = up.parent) up.below.push(index);
  });
  root.children = root.children.map(chained);
  return root;
}

/** A module that holds but one thing, and has no value of its own, is one line with it. */
function chained(node: Node): Node {
  node.children = node.children.map(chained);
  const [only, ...others] = node.children;
  if (!only || others.length || node.site >= 0) return node;
  const lift = (one: Node): void => {
    one.depth -= 1;
    one.children.forEach(lift);
  };
  lift(only);
  only.label = `${node.label}.${only.label}`;
  only.parent = node.parent;
  return only;
}

export function typesOf(run: Run): Map<string, string> {
  const types = new Map<string, string>();
  for (const model of run.models) {
    for (const module of model.modules) types.set(module.name, module.type);
    for (const { name, shape } of model.parameters) types.set(name, shape.join(" × "));
  }
  return types;
}

/** The lines that show, in depth order; `open` says which nodes are unfolded. */
export function rows(root: Node, open: (node: Node) => boolean): Node[] {
  const out: Node[] = [];
  const walk = (node: Node): void => {
    out.push(node);
    if (node.children.length && open(node)) node.children.forEach(walk);
  };
  if (root.site >= 0) out.push(root);
  root.children.forEach(walk);
  return out;
}

/** A layer: below it are only tensors or heads. At first it is one line. */
export const isLayer = (node: Node): boolean => node.children.every((child) => !child.children.length);

/** How deep to open at first, so that at most about `most` lines show. */
export function firstDepth(root: Node, most: number): number {
  for (let depth = 8; depth > 1; depth--) {
    if (rows(root, (node) => node.depth < depth && !isLayer(node)).length <= most) return depth;
  }
  return 1;
}
