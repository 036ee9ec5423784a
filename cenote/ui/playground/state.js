// Hooks that the tabs share.
import { useEffect, useRef, useState } from "./vendor/preact-htm.js";

const values = new Map();

/** Like useState; the value outlives a change of the tab, but not of the page. */
export function useStored(name, initial) {
  const [value, setValue] = useState(values.has(name) ? values.get(name) : initial);
  const store = (changed) => {
    values.set(name, changed);
    setValue(changed);
  };
  return [value, store];
}

/** Run an async function on demand; a newer run replaces an older one, which is aborted. */
export function useRun(name, work) {
  const [state, setState] = useStored(`${name}.run`, { isBusy: false });
  const controller = useRef(null);
  const stop = () => {
    controller.current?.abort();
    values.set(`${name}.run`, { ...values.get(`${name}.run`), isBusy: false });
  };
  useEffect(() => stop, []);
  const run = async () => {
    controller.current?.abort();
    const current = (controller.current = new AbortController());
    setState({ ...state, isBusy: true, error: null });
    const startedAt = performance.now();
    try {
      const result = await work(current.signal);
      if (!current.signal.aborted) setState({ isBusy: false, result, ms: performance.now() - startedAt });
    } catch (error) {
      if (current.signal.aborted) return;
      setState({ isBusy: false, error });
      if (error.status === 401) dispatchEvent(new Event("cenote-unauthorized"));
    }
  };
  return { ...state, run };
}

/** Return the chosen one of the models, or the first if that one is not there any more. */
export function useModel(name, models) {
  const [id, setId] = useStored(`${name}.model`, models[0].id);
  const model = models.find((candidate) => candidate.id === id) ?? models[0];
  return [model, setId];
}

export const splitLines = (text) => text.split("\n").filter((line) => line.trim() !== "");

export function format(value, digits = 4) {
  if (!Number.isFinite(value)) return "–";
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}
