// Whether an element is on the screen, or soon will be: only then its data is asked for.

import { useEffect, useRef, useState } from "preact/hooks";
import type { RefObject } from "preact";

export function useVisible<E extends HTMLElement>(): [RefObject<E | null>, boolean] {
  const element = useRef<E>(null);
  const [visible, setVisible] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => setVisible(entries.some((entry) => entry.isIntersecting)), {
      rootMargin: "200px",
    });
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return [element, visible];
}
