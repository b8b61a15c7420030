import { useEffect, useRef } from "preact/hooks";
import { isReport } from "../data/recorded";
import type { Finding } from "../data/types";
import { link, VIEWS, type View } from "../state/place";
import { Icon, SeverityIcon } from "./icons";

export function Nav({ view, findings, hasAttention }: { view: View; findings: readonly Finding[]; hasAttention: boolean }) {
  const open = findings.filter((one) => one.state !== "resolved");
  const bar = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a phone the list is a strip that scrolls sideways.
    const item = bar.current?.querySelector<HTMLElement>("[aria-current]");
    if (item && bar.current) bar.current.scrollLeft = item.offsetLeft - bar.current.clientWidth / 2 + item.clientWidth / 2;
  }, [view]);
  return (
    <nav ref={bar} class="nav" aria-label="Views">
      {VIEWS.filter(([name]) => name !== "runs" || !isReport()).map(([name, text], index) => (
        <a key={name} href={link(name)} class={name === "attention" && !hasAttention ? "nav-item dim" : "nav-item"} aria-current={name === view ? "page" : undefined} title={`${text} (${index + 1})`}>
          <Icon name={name} />
          <span>{text}</span>
          {name === "findings" && open[0] && (
            <span class="nav-count" aria-label={`${open.length} open`}><SeverityIcon severity={open[0].severity} />{open.length}</span>
          )}
        </a>
      ))}
    </nav>
  );
}
