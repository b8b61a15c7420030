// Said at the top when the page can't be up to date.

import { useEffect, useState } from "preact/hooks";
import { connection } from "../data/live";
import { useStore } from "../state/store";

export function Banner() {
  const state = useStore(connection);
  const [late, setLate] = useState(false);
  useEffect(() => {
    if (state !== "lost") return setLate(false);
    // A hiccup of a moment is not worth a word.
    const timer = setTimeout(() => setLate(true), 600);
    return () => clearTimeout(timer);
  }, [state]);
  if (state === "refused")
    return (
      <div class="banner bad" role="alert">This page's key is no longer valid: open the address again that <code>vitals ui</code> printed.</div>
    );
  return late ? <div class="banner" role="status"><span class="spinner" aria-hidden="true" /> Reconnecting to the server … what you see is the last that arrived.</div> : null;
}
