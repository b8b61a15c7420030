// A panel with a title, and what one can do with what is in it.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { usePins } from "../state/place";
import { Icon } from "./icons";

interface CardProps {
  title: ComponentChildren;
  note?: ComponentChildren;
  actions?: ComponentChildren;
  pin?: string | undefined;
  save?: Record<string, () => void> | undefined;
  children: ComponentChildren;
  class?: string;
}

export function Card({ title, note, actions, pin, save, children, class: kind }: CardProps) {
  return (
    <section class={`card ${kind ?? ""}`}>
      <header class="card-head">
        <h3 class="card-title">{title}</h3>
        {note && <span class="card-note">{note}</span>}
        <span class="card-actions">
          {actions}
          {save && <SaveMenu items={save} />}
          {pin && <PinButton pin={pin} />}
        </span>
      </header>
      {children}
    </section>
  );
}

function PinButton({ pin }: { pin: string }) {
  const [pins, toggle] = usePins();
  const on = pins.includes(pin);
  return (
    <button class={on ? "tool on" : "tool"} aria-pressed={on} aria-label={`${on ? "Unpin" : "Pin"} ${pin}`} title={on ? "Unpin" : "Pin to the overview"} onClick={() => toggle(pin)}>
      <Icon name="pin" />
    </button>
  );
}

function SaveMenu({ items }: { items: Record<string, () => void> }) {
  const [open, setOpen] = useState(false);
  return (
    <span class="menu" onBlur={(event) => {
      if (!event.currentTarget.contains(event.relatedTarget as Element | null)) setOpen(false);
    }}>
      <button class="tool" aria-haspopup="menu" aria-expanded={open} aria-label="Save as a file" title="Save as PNG or SVG" onClick={() => setOpen(!open)}>
        <Icon name="save" />
      </button>
      {open && (
        <span class="menu-list" role="menu">
          {Object.entries(items).map(([name, run]) => (
            <button key={name} role="menuitem" onClick={() => { run(); setOpen(false); }}>{name}</button>
          ))}
        </span>
      )}
    </span>
  );
}
