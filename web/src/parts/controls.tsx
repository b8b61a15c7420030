// Choosing things.

import type { ComponentChildren } from "preact";
import type { Axis } from "../data/types";
import { set, usePlace } from "../state/place";

export function Choice<T extends string>({ label, value, options, onChange }: {
  label: string; value: T; options: readonly (T | readonly [T, string])[]; onChange(value: T): void;
}) {
  return (
    <label class="field">
      <span class="field-label">{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {options.map((option) => {
          const [name, text] = typeof option === "string" ? [option, option] : option;
          return <option key={name} value={name}>{text}</option>;
        })}
      </select>
    </label>
  );
}

export function Toggle<T extends string>({ label, value, options, onChange }: {
  label: string; value: T; options: readonly (readonly [T, string])[]; onChange(value: T): void;
}) {
  return (
    <div class="field" role="group" aria-label={label}>
      <span class="field-label" aria-hidden="true">{label}</span>
      <span class="toggle">
        {options.map(([name, text]) => (
          <button key={name} aria-pressed={name === value} onClick={() => onChange(name)}>{text}</button>
        ))}
      </span>
    </div>
  );
}

export function TextField({ label, value, placeholder, onInput, problem, id }: {
  label: string; value: string; placeholder?: string; onInput(value: string): void; problem?: string | undefined; id?: string;
}) {
  return (
    <label class="field grow">
      <span class="field-label">{label}</span>
      <input
        type="search" id={id} value={value} placeholder={placeholder} spellcheck={false} autocomplete="off"
        aria-invalid={!!problem} title={problem} onInput={(event) => onInput(event.currentTarget.value)}
      />
      {problem && <span class="field-problem" role="alert">{problem}</span>}
    </label>
  );
}

export function Bar({ children }: { children: ComponentChildren }) {
  return <div class="bar">{children}</div>;
}

/** A regular expression, or what is wrong with it. Without one, everything matches. */
export function pattern(text: string): { test(name: string): boolean; problem?: string } {
  if (!text) return { test: () => true };
  try {
    const made = new RegExp(text, "i");
    return { test: (name) => made.test(name) };
  } catch (error) {
    const plain = text.toLowerCase();
    return { test: (name) => name.toLowerCase().includes(plain), problem: (error as Error).message };
  }
}

const AXES: Record<Axis, string> = { step: "steps", time: "time", tokens: "tokens", samples: "samples" };

/** By what runs lie over each other. */
export function useAlign(axes: readonly Axis[]): Axis {
  const { settings } = usePlace();
  return axes.find((axis) => axis === settings["align"]) ?? "step";
}

export function AlignedBy({ axes }: { axes: readonly Axis[] }) {
  const align = useAlign(axes);
  return <Toggle label="Aligned by" value={align} options={axes.map((axis) => [axis, AXES[axis] ?? axis] as const)} onChange={(next) => set({ align: next === "step" ? "" : next })} />;
}

/** How much lines are smoothed, in every chart. */
export function Smoothing() {
  const { settings } = usePlace();
  const value = Number(settings["smooth"] ?? 0);
  return (
    <label class="field">
      <span class="field-label">Smoothing {value ? value.toFixed(2) : "off"}</span>
      <input type="range" min={0} max={0.98} step={0.02} value={value} onInput={(event) => set({ smooth: Number(event.currentTarget.value) || "" })} />
    </label>
  );
}

export function StepSlider({ label = "Step", value, first, last, onChange }: {
  label?: string; value: number; first: number; last: number; onChange(value: number): void;
}) {
  return (
    <label class="field grow">
      <span class="field-label">{label}</span>
      <input type="range" min={first} max={last} step={1} value={value} aria-valuetext={`step ${value}`} onInput={(event) => onChange(Number(event.currentTarget.value))} />
    </label>
  );
}
