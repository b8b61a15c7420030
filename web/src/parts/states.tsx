// Nothing yet, nothing here, nothing works: said in words, with what to do.

import type { ComponentChildren } from "preact";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <p class="state-title">{title}</p>
      {children && <div class="state-text">{children}</div>}
    </div>
  );
}

/** `asleep`: not on the screen, so not even asked for yet. */
export function Loading({ what = "Loading", height = 120, asleep = false }: { what?: string; height?: number; asleep?: boolean }) {
  if (asleep) return <div class="state asleep" style={{ minHeight: `${height}px` }} />;
  return (
    <div class="state loading" role="status" aria-label={what} style={{ minHeight: `${height}px` }}>
      <span class="shimmer" />
    </div>
  );
}

export function Problem({ text }: { text: string }) {
  return (
    <div class="state problem" role="alert">
      <p class="state-title">That did not work</p>
      <div class="state-text">{text}</div>
    </div>
  );
}
