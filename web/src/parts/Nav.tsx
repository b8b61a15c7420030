import type { Finding } from "../data/types";
import { link, VIEWS, type View } from "../state/place";
import { Icon, SeverityIcon } from "./icons";

export function Nav({ view, findings, hasAttention }: { view: View; findings: readonly Finding[]; hasAttention: boolean }) {
  const open = findings.filter((one) => one.state !== "resolved");
  return (
    <nav class="nav" aria-label="Views">
      {VIEWS.map(([name, text], index) => (
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
