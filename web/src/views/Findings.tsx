// What is wrong now; each finding opens its evidence.

import { useState } from "preact/hooks";
import { hasKey, keyText, parseKey } from "../data/key";
import { ROOT } from "../data/root";
import { toNumber, type Evidence, type Finding, type Run } from "../data/types";
import { grouped, number, percent, words } from "../draw/numbers";
import { Card } from "../parts/Card";
import { SeverityIcon } from "../parts/icons";
import { openSeries, SeriesChart } from "../parts/SeriesChart";
import { Loading, Problem } from "../parts/states";
import { useCurrent } from "../state/current";
import { useCommand } from "../state/keys";
import { link, set, usePlace } from "../state/place";

const idOf = (finding: Finding, at: number): string => finding.id ?? String(at);

export function FindingsView() {
  const { run, alone, findings, marks } = useCurrent();
  const { settings } = usePlace();
  const all = findings.value?.findings ?? [];
  const at = Math.max(0, all.findIndex((one, index) => idOf(one, index) === settings["finding"]));
  const choose = (index: number): void => {
    if (all[index]) set({ finding: idOf(all[index]!, index) });
  };
  useCommand("next", () => choose(at + 1));
  useCommand("previous", () => choose(at - 1));
  if (findings.error) return <Problem text={findings.error} />;
  if (!findings.value) return <Checking run={run} alone={alone} marks={marks} />;
  const open = all.filter((one) => one.state !== "resolved");
  const wrong = open.filter((one) => one.severity !== "info").length;
  const notes = open.length - wrong;
  const resolved = all.length - open.length;
  const rest = [counted(notes, "note"), resolved ? `${resolved} resolved` : ""].filter(Boolean);
  return (
    <div class="view findings">
      <h1 class="view-title">
        {wrong ? `${counted(wrong, "thing")} wrong` : "Nothing wrong"}
        <span class="quiet"> in {[run.name, ...rest].join(", ")}</span>
      </h1>
      {!all.length ? (
        <Healthy run={run} known={findings.value.source !== "none"} />
      ) : (
        <div class="split">
          <ol class="finding-list" aria-label="Findings">
            {all.map((one, index) => (
              <li key={idOf(one, index)}>
                <button class="finding-item" aria-current={index === at ? "true" : undefined} onClick={() => choose(index)}>
                  <SeverityIcon severity={one.severity} />
                  <span class="finding-text">
                    <span class="finding-name">{words(one.name)}{one.state === "resolved" && <span class="quiet"> · resolved</span>}</span>
                    <span class="finding-where">{place(one)}</span>
                    <span class="finding-when">{when(one)} · {percent(one.confidence)} sure</span>
                  </span>
                </button>
              </li>
            ))}
          </ol>
          <Detail key={idOf(all[at]!, at)} finding={all[at]!} run={run} runs={alone} marks={marks} />
        </div>
      )}
    </div>
  );
}

/** "2 notes"; nothing of none. */
function counted(num: number, what: string): string {
  return num ? `${num} ${what}${num > 1 ? "s" : ""}` : "";
}

/** A run without stored findings is diagnosed now; of a long one that takes a second. */
function Checking({ run, alone, marks }: Pick<ReturnType<typeof useCurrent>, "run" | "alone" | "marks">) {
  const keys = [run.loss_key ?? "loss", `gradient/${ROOT}/norm`].filter((key) => hasKey(run, key));
  return (
    <div class="view findings">
      <h1 class="view-title">Looking for what is wrong<span class="quiet"> in {run.name} …</span></h1>
      <div class="split">
        <Loading what="Looking for what is wrong" height={70} />
        <div class="grid">{keys.map((key) => <SeriesChart key={key} runs={alone} keys={[key]} marks={marks} />)}</div>
      </div>
    </div>
  );
}

const place = ({ sites }: Finding): string =>
  !sites.length || sites[0] === ROOT ? "the whole run" : sites.length > 1 ? `${sites[0]} and ${sites.length - 1} more` : sites[0]!;

const when = ({ first_step, last_step, resolved_step }: Finding): string =>
  resolved_step !== null && resolved_step !== undefined
    ? `steps ${grouped(first_step)}…${grouped(resolved_step)}`
    : first_step === last_step ? `at step ${grouped(first_step)}` : `since step ${grouped(first_step)}`;

function Detail({ finding, run, runs, marks }: {
  finding: Finding; run: Run; runs: ReturnType<typeof useCurrent>["alone"]; marks: ReturnType<typeof useCurrent>["marks"];
}) {
  const shown = finding.evidence.find((one) => one.key && hasKey(run, one.key));
  return (
    <article class="finding" aria-label={words(finding.name)}>
      <header class="finding-head">
        <SeverityIcon severity={finding.severity} />
        <h2>{words(finding.name)}</h2>
        <span class="quiet">{when(finding)}</span>
        <Sure share={finding.confidence} />
      </header>
      <p class="lead">{finding.explanation}</p>
      {finding.fix && (
        <div class="fix">
          <span class="overline">Do this first</span>
          <p>{finding.fix}</p>
          <Change change={finding.change} />
        </div>
      )}
      <h3 class="section">Evidence</h3>
      <div class="evidence">
        {finding.evidence.map((one, index) => (
          <Proof key={index} evidence={one} run={run} runs={runs} marks={marks} />
        ))}
      </div>
      {finding.sites.some((site) => site !== ROOT) && (
        <>
          <h3 class="section">Where</h3>
          <div class="chips">
            {finding.sites.filter((site) => site !== ROOT).slice(0, 40).map((site, index) => (
              <button key={site} class="chip mono" title={index ? "" : "where it begins"} onClick={() => openSeries(siteKey(run, site, shown?.key ?? null))}>{index === 0 && finding.sites.length > 1 ? "◉ " : ""}{site}</button>
            ))}
            {shown?.key && <HeatLink keyName={shown.key} run={run} />}
          </div>
        </>
      )}
      {finding.causes.length > 0 && (
        <>
          <h3 class="section">What may be behind it</h3>
          <ol class="causes">
            {finding.causes.map((cause) => (
              <li key={cause.text}>
                <span class="cause-bar" aria-hidden="true"><i style={{ width: percent(cause.confidence).replace(" ", "") }} /></span>
                <span class="cause-share">{percent(cause.confidence)}</span>
                <span class="cause-text">{cause.text}<span class="quiet">To tell: {cause.test}</span></span>
              </li>
            ))}
          </ol>
        </>
      )}
      {finding.symptoms.length > 0 && (
        <>
          <h3 class="section">Follows from it</h3>
          {finding.symptoms.map((one, index) => <Symptom key={index} finding={one} run={run} runs={runs} marks={marks} />)}
        </>
      )}
    </article>
  );
}

function Proof({ evidence, run, runs, marks }: {
  evidence: Evidence; run: Run; runs: ReturnType<typeof useCurrent>["alone"]; marks: ReturnType<typeof useCurrent>["marks"];
}) {
  const limit = toNumber(evidence.threshold);
  const drawn = evidence.key !== null && hasKey(run, evidence.key);
  const key = drawn ? parseKey(evidence.key!, run.columns) : null;
  // Only bands of ratios are narrow enough to be drawn in full.
  const band = key?.stat === "ratio" ? run.healthy[`${key.kind}/${key.stat}`] : undefined;
  return (
    <div class="proof">
      <p class="proof-text">{evidence.text}</p>
      {drawn && (
        <SeriesChart
          runs={runs} keys={[evidence.key!]} height={170} marks={marks}
          limits={Number.isFinite(limit) ? [{ value: limit, label: `limit ${number(limit, 3)}` }] : []}
          band={band} {...(band && { log: true, wholeBand: true })}
          spot={evidence.step !== null ? { step: evidence.step, label: `step ${grouped(evidence.step)}` } : undefined}
        />
      )}
    </div>
  );
}

function Symptom({ finding, run, runs, marks }: Parameters<typeof Detail>[0]) {
  const [open, setOpen] = useState(false);
  return (
    <div class="symptom">
      <button class="symptom-head" aria-expanded={open} onClick={() => setOpen(!open)}>
        <SeverityIcon severity={finding.severity} />
        <span>{words(finding.name)}</span>
        <span class="quiet">{place(finding)}</span>
      </button>
      {open && (
        <div class="symptom-body">
          <p>{finding.explanation}</p>
          <div class="evidence">{finding.evidence.map((one, index) => <Proof key={index} evidence={one} run={run} runs={runs} marks={marks} />)}</div>
        </div>
      )}
    </div>
  );
}

/** The same statistic at another site, where it has one; otherwise whatever it has. */
function siteKey(run: Run, site: string, like: string | null): string {
  if (like) {
    const { kind, stat } = parseKey(like, run.columns);
    const same = keyText({ kind, site, stat });
    if (hasKey(run, same)) return same;
  }
  for (const kind of ["update", "gradient", "activation", "parameter", ...Object.keys(run.columns)]) {
    const columns = run.columns[kind];
    const at = columns?.sites.indexOf(site) ?? -1;
    if (at < 0) continue;
    for (const stat of ["ratio", "rms", "norm", ...Object.keys(columns!.stats)])
      if (columns!.stats[stat]?.includes(at)) return keyText({ kind, site, stat });
  }
  return like ?? site;
}

function HeatLink({ keyName, run }: { keyName: string; run: Run }) {
  const { kind, stat } = parseKey(keyName, run.columns);
  if ((run.columns[kind]?.sites.length ?? 0) < 3) return null;
  return <a class="chip link" href={link("layers", { kind, stat })}>all layers: {kind} {stat} →</a>;
}

function Sure({ share }: { share: number }) {
  return (
    <span class="sure" title="How sure the check is">
      <span class="sure-bar" aria-hidden="true"><i style={{ width: `${share * 100}%` }} /></span>
      {percent(share)} sure
    </span>
  );
}

function Change({ change }: { change: Record<string, unknown> }) {
  const lines = Object.entries(change ?? {});
  if (!lines.length) return null;
  return (
    <dl class="change">
      {lines.map(([name, value]) => {
        const pair = value !== null && typeof value === "object" && "from" in value && "to" in value ? (value as { from: unknown; to: unknown }) : null;
        return (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{pair ? <><s>{said(pair.from)}</s> → <b>{said(pair.to)}</b></> : said(value)}</dd>
          </div>
        );
      })}
    </dl>
  );
}

const said = (value: unknown): string => (typeof value === "number" ? number(value, 4) : typeof value === "string" ? value : JSON.stringify(value));

function Healthy({ run, known }: { run: Run; known: boolean }) {
  return (
    <Card title={known ? "All checks passed so far" : "Not diagnosed"} class="healthy">
      <p>
        {known
          ? `Nothing in ${grouped(run.num_steps ?? 0)} measured steps broke a limit. Have a look yourself:`
          : "This run has no stored findings, and this installation has no checks to run. The measurements are all here:"}
      </p>
      <p class="links">
        <a href={link("overview")}>Overview</a>
        <a href={link("layers")}>Layers over time</a>
        <a href={link("updates")}>Update ratios</a>
      </p>
    </Card>
  );
}
