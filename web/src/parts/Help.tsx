import { useEffect, useRef } from "preact/hooks";
import { helpOpen, SHORTCUTS } from "../state/keys";
import { useStore } from "../state/store";
import { Icon } from "./icons";

export function Help() {
  const open = useStore(helpOpen);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (open) button.current?.focus();
  }, [open]);
  if (!open) return null;
  return (
    <div class="veil" onClick={() => helpOpen.set(false)}>
      <div class="help" role="dialog" aria-modal="true" aria-label="Keys" onClick={(event) => event.stopPropagation()}>
        <header>
          <h2>Keys</h2>
          <button ref={button} class="tool" aria-label="Close" onClick={() => helpOpen.set(false)}><Icon name="close" /></button>
        </header>
        <dl>
          {SHORTCUTS.map(([keys, text]) => (
            <div key={keys}>
              <dt>{keys.split(" ").filter(Boolean).map((key) => (key === "…" ? " … " : <kbd key={key}>{key}</kbd>))}</dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
        <p class="quiet">Drag over a chart to zoom in, double-click to see all of it. Click a line or a cell to open its series.</p>
      </div>
    </div>
  );
}
