// A value that components can follow.

import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  get(): T;
  set(value: T): void;
  listen(heard: (value: T) => void): () => void;
}

export function store<T>(value: T): Store<T> {
  const listeners = new Set<(value: T) => void>();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const heard of [...listeners]) heard(value);
    },
    listen(heard) {
      listeners.add(heard);
      return () => listeners.delete(heard);
    },
  };
}

export function useStore<T>(from: Store<T>): T {
  const [value, setValue] = useState(from.get());
  useEffect(() => {
    setValue(() => from.get());
    return from.listen((next) => setValue(() => next));
  }, [from]);
  return value;
}
