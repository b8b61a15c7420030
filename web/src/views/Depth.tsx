// One statistic over depth, at one step or several, of one run or several.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { flagText } from "../data/frame";
import { useFrames } from "../data/frames";
import { keyText } from "../data/key";
import type { ProfileHeader } from "../data/types";
import { BAD_CSS } from "../draw/colours";
import { lineColour } from "../draw/palette";
import { grouped, unitOf, words } from "../draw/numbers";
import { saveElement } from "../draw/save";
import { linear, logarithmic, wantsLog } from "../draw/scale";
import { Card } from "../parts/Card";
import { Bar, pattern, StepSlider, TextField, Toggle } from "../parts/controls";
import { openSeries } from "../parts/SeriesChart";
import { Empty, Loading, Problem } from "../parts/states";
import { useCurrent } from "../state/current";
import { set, usePlace } from "../state/place";
import { KindAndStat, picked } from "./pick";

/** Kept steps of one run have its colour; the dashes tell them apart. */
const DASHES = ["", "6 3", "2 3", "9 3 2 3"];

interface Profile {
  label: string;
  colour: string;
  dash: string;
  strong: boolean;
  sites: Map<string, { value: number; flags: number }>;
}

export function DepthView() {
  const { run, runs } = useCurrent();
  const { settings } = usePlace();
  const [kind, stat] = picked(run, settings["kind"], settings["stat"]);
  const [first, last] = [run.first_step ?? 0, run.last_step ?? 0];
  const atEnd = settings["step"] === undefined;
  const step = atEnd ? last : Math.min(last, Math.max(first, Number(settings["step"])));
  const kept = (settings["keep"] ?? "").split(",").filter(Boolean).map(Number);
  const filter = settings["filter"] ?? "";
  const { test, problem } = pattern(filter);
  // Matrices beside matrices: scales and shifts of norms are of another size and would make a zigzag.
  const matrices = useMemo(() => new Set(run.models.flatMap((model) => model.parameters.filter(({ shape }) => shape.length > 1).map(({ name }) => name))), [run.models]);
  const hasMatrices = run.columns[kind]?.sites.some((site) => matrices.has(site)) ?? false;
  const which = !hasMatrices ? "all" : (settings["which"] ?? "matrices");
  const asked = useSettled([step, ...kept].join());
  const steps = asked.split(",").map(Number);
  const several = useFrames<ProfileHeader>(runs.map((one) => one.id), "profile", { kind, stat, step: steps }, !!stat);

  const profiles = useMemo(() => {
    const out: Profile[] = [];
    several.frames.forEach((frame, at) => {
      if (!frame) return;
      const { header, arrays } = frame;
      const count = header.sites.length;
      header.steps.forEach((measured, line) => {
        const strong = line === 0;
        const sites = new Map(header.sites.map((site, s) => [site, { value: arrays["values"]![line * count + s]!, flags: arrays["flags"]![line * count + s]! }]));
        const colour = runs.length > 1 ? runs[at]!.colour : lineColour(line);
        out.push({ label: `${runs.length > 1 ? `${runs[at]!.title} · ` : ""}step ${grouped(measured)}`, colour, dash: runs.length > 1 ? DASHES[line % DASHES.length]! : "", strong, sites });
      });
    });
    return out;
  }, [...several.frames, runs]);
  const sites = useMemo(() => {
    const names = new Set(several.frames.flatMap((frame) => frame?.header.sites ?? []));
    return [...names].filter((site) => test(site) && (which === "all" || matrices.has(site)));
  }, [...several.frames, filter, which, matrices]);
  const error = several.errors.find(Boolean);
  const chart = useRef<HTMLDivElement>(null);
  return (
    <div class="view">
      <h1 class="hidden">Depth profile</h1>
      <Bar>
        <KindAndStat run={run} kind={kind} stat={stat} onChange={set} />
        <TextField label="Layers" value={filter} placeholder="regular expression" onInput={(text) => set({ filter: text })} problem={problem} />
        {hasMatrices && <Toggle label="Show" value={which} options={[["matrices", "matrices"], ["all", "all tensors"]]} onChange={(next) => set({ which: next === "matrices" ? "" : next })} />}
      </Bar>
      <Bar>
        <StepSlider value={step} first={first} last={last} onChange={(next) => set({ step: next >= last ? "" : next })} />
        <output class="figure step-out">step {grouped(step)}{atEnd ? " (newest)" : ""}</output>
        <button class="button" disabled={kept.includes(step)} onClick={() => set({ keep: [...kept, step].sort((a, b) => a - b).join() })}>Keep this step</button>
        {kept.map((one) => (
          <button key={one} class="chip" aria-label={`Remove step ${one}`} onClick={() => set({ keep: kept.filter((other) => other !== one).join() })}>{grouped(one)} ✕</button>
        ))}
      </Bar>
      <Card title={`${words(kind)} ${stat} over depth`} note="first layer on top" save={sites.length ? saveElement(() => chart.current?.querySelector("svg.profile-plot"), `${words(kind)} ${stat} over depth`, profiles) : undefined}>
        {error && !profiles.length ? <Problem text={error} /> : several.loading ? <Loading what="Loading the profile" height={420} /> : !sites.length ? <Empty title="No layer matches">{filter}</Empty> : (
          <div ref={chart}><ProfileChart name={`${words(kind)} ${stat} over depth`} sites={sites} profiles={profiles} format={unitOf(stat)} onPick={(site) => openSeries(keyText({ kind, site, stat }))} /></div>
        )}
      </Card>
    </div>
  );
}

/** A value that follows quickly changing ones at most every 80 ms. */
function useSettled<T>(value: T): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), 80);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

/** Room for the numbers above the first layer. */
const TOP = 18;

function ProfileChart({ name, sites, profiles, format, onPick }: {
  name: string; sites: readonly string[]; profiles: readonly Profile[]; format: (value: number) => string; onPick(site: string): void;
}) {
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  const [lit, setLit] = useState<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(host.current?.clientWidth ?? 800));
    observer.observe(host.current!);
    return () => observer.disconnect();
  }, []);
  const row = sites.length > 120 ? 12 : sites.length > 40 ? 15 : 20;
  const left = Math.min(width * 0.42, Math.max(...sites.map((site) => site.length)) * 6.4 + 14);
  const height = TOP + sites.length * row + 18;
  const values = profiles.flatMap(({ sites: at }) => sites.map((site) => at.get(site)?.value ?? NaN)).filter(Number.isFinite);
  const scale = wantsLog(values) ? logarithmic(values) : linear(values);
  const [low, high] = scale.range;
  const px = (value: number): number | null => {
    const place = scale.to(value);
    return place === null ? null : left + 8 + ((place - low) / (high - low)) * (width - left - 24);
  };
  const py = (at: number): number => TOP + at * row + row / 2;
  return (
    <div ref={host} class="profile" role="group" aria-label={`${name}: ${sites.length} layers, ${profiles.map((one) => one.label).join(", ")}`}>
      <ul class="legend">
        {profiles.map((one) => <li key={one.label}><svg class="line-swatch" width={22} height={6} aria-hidden="true"><line x1={0} x2={22} y1={3} y2={3} stroke={one.colour} stroke-width={2} stroke-dasharray={one.dash} /></svg>{one.label}</li>)}
      </ul>
      <svg class="profile-plot" width={width} height={height} onPointerLeave={() => setLit(null)}>
        {scale.splits(low, high).map((split) => {
          const x = left + 8 + ((split - low) / (high - low)) * (width - left - 24);
          return (
            <g key={split}>
              <line x1={x} x2={x} y1={TOP} y2={TOP + sites.length * row} class="grid-line" />
              <text x={x} y={11} text-anchor="middle" class="axis-text">{scale.text(split, format)}</text>
              <text x={x} y={height - 4} text-anchor="middle" class="axis-text">{scale.text(split, format)}</text>
            </g>
          );
        })}
        {sites.map((site, at) => (
          <g key={site} class={lit === at ? "profile-row lit" : "profile-row"} tabIndex={0} role="button" aria-label={`${site}: ${profiles.map((one) => `${one.label} ${said(one.sites.get(site), format)}`).join(", ")}`}
            onPointerEnter={() => setLit(at)} onFocus={() => setLit(at)} onClick={() => onPick(site)} onKeyDown={(event) => event.key === "Enter" && onPick(site)}>
            <rect x={0} y={TOP + at * row} width={width} height={row} />
            <text x={left} y={py(at) + 4} text-anchor="end" class="axis-text name">{fit(site, left)}</text>
          </g>
        ))}
        {profiles.map((one) => {
          let path = "";
          let pen = "M";
          const dots: preact.JSX.Element[] = [];
          sites.forEach((site, at) => {
            const cell = one.sites.get(site);
            const x = cell ? px(cell.value) : null;
            if (x === null) {
              pen = "M";
              if (cell && cell.flags & 7) dots.push(<path key={site} d={`M${left + 12},${py(at)}m-4,3 l4,-7 l4,7z`} fill={BAD_CSS} />);
              return;
            }
            path += `${pen}${x.toFixed(1)},${py(at)}`;
            pen = "L";
            if (one.strong || sites.length < 80) dots.push(<circle key={site} cx={x} cy={py(at)} r={one.strong ? 2.8 : 2} fill={cell!.flags & 7 ? BAD_CSS : one.colour} />);
          });
          return (
            <g key={one.label} class="profile-line">
              <path d={path} fill="none" stroke={one.colour} stroke-width={one.strong ? 1.6 : 1.2} stroke-dasharray={one.dash} />
              {dots}
            </g>
          );
        })}
      </svg>
      {lit !== null && (
        <div class="tip" role="status" style={{ left: `${left + 16}px`, top: `${TOP + (lit + 1) * row + 30}px` }}>
          <div class="tip-head">{sites[lit]}</div>
          {profiles.map((one) => (
            <div class="tip-row" key={one.label}><span class="swatch" style={{ background: one.colour }} /><span class="tip-label">{one.label}</span><span class="tip-value">{said(one.sites.get(sites[lit]!), format)}</span></div>
          ))}
        </div>
      )}
    </div>
  );
}

const said = (cell: { value: number; flags: number } | undefined, format: (value: number) => string): string =>
  !cell || cell.flags & 128 ? "not measured" : flagText(cell.flags) || format(cell.value);

const fit = (site: string, width: number): string => {
  const most = Math.max(6, Math.floor(width / 6.2));
  return site.length > most ? `…${site.slice(site.length - most + 1)}` : site;
};
