// Server: live charts from /metrics, and the models with buttons to load and unload them.
import { call } from "../api.js";
import { Chart, COLOURS } from "../charts.js";
import { compareSamples, takeSample } from "../prometheus.js";
import { ModelTable } from "../model_table.js";
import { format } from "../state.js";
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";

const METRICS_MS = 2000;
const MODELS_MS = 10000;
const MAX_SAMPLES = 150; // five minutes

const short = (value) => (value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : format(value, value % 1 && value < 100 ? 1 : 0));
const CHARTS = [
  { key: "tokens", title: "Throughput, tokens/s" },
  { key: "requests", title: "Requests/s" },
  { key: "median", title: "Latency, median, ms" },
  { key: "p95", title: "Latency, 95 %, ms" },
  { key: "waiting", title: "Queue, waiting tokens" },
  { key: "fill", title: "Batch fill, tokens per batch" },
  { key: "memory", title: "Memory, MiB" },
  { key: "busy", title: "Device busy, %" },
  { key: "errors", title: "Refused and failed requests/s" },
];
const MIB = 1024 ** 2;

export default function Server({ onChange }) {
  const [samples, setSamples] = useState([]);
  const [rows, setRows] = useState(null); // of /admin/models; null without an admin key
  const [error, setError] = useState("");
  const memory = useRef({}); // in MiB by model, as last reported
  const [version, setVersion] = useState(0); // counts the changes of models
  usePolling(METRICS_MS, setError, [], async (signal) => {
    const sample = takeSample((await call("/metrics", undefined, { signal })).data, Date.now() / 1000);
    setSamples((known) => [...known, { ...sample, memory: memory.current }].slice(-MAX_SAMPLES));
  });
  usePolling(MODELS_MS, setError, [version], async (signal) => {
    const reply = await call("/admin/models", undefined, { signal }).catch((failure) => {
      if (failure.status !== 403) throw failure; // not an admin key
    });
    setRows(reply?.data.models ?? null);
    memory.current = Object.fromEntries((reply?.data.models ?? []).map((row) => [row.name, row.memory_bytes / MIB || null]));
  });
  const names = samples.length ? Object.keys(samples[samples.length - 1].models) : [];
  const measure = (name) => (sample, i) => ({
    ...(i && compareSamples(samples[i - 1], sample, name)),
    memory: sample.memory[name],
  });
  const history = names.map((name) => samples.map(measure(name)));
  return html`${error && html`<p class="error" role="alert">${error}</p>`}
    <ul class="legend" aria-label="Colours of the models">
      ${names.map((name, i) => html`<li key=${name}><svg viewBox="0 0 10 10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill=${COLOURS[i % COLOURS.length]} /></svg>${name}</li>`)}
    </ul>
    <div class="charts">
      ${CHARTS.map(({ key, title }) => html`<${Chart} key=${key} title=${title} format=${short} times=${samples.map(({ at }) => at)}
        series=${names.map((name, i) => ({ label: name, values: history[i].map((values) => values?.[key] ?? null) }))}
        describe="The table below has the latest values." />`)}
    </div>
    <${Latest} names=${names} history=${history} />
    <${ModelTable} rows=${rows} isKnown=${samples.length > 0}
      onChange=${() => {
        setVersion((number) => number + 1);
        onChange();
      }} />`;
}

/** Call an async function now and again after every interval, until the tab is left. */
function usePolling(interval, onError, reasons, work) {
  useEffect(() => {
    const controller = new AbortController();
    let timer;
    const loop = async () => {
      try {
        await work(controller.signal);
        onError("");
      } catch (failure) {
        if (!controller.signal.aborted) onError(failure.message);
      }
      if (!controller.signal.aborted) timer = setTimeout(loop, interval);
    };
    loop();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, reasons);
}

function Latest({ names, history }) {
  return html`<section class="card"><h3>Latest values</h3>
    <div class="scroll" tabindex="0" role="region" aria-label="Latest values">
      <table class="plain">
        <caption class="hidden">Latest values of every chart, per model</caption>
        <thead><tr><th scope="col">Model</th>${CHARTS.map(({ key, title }) => html`<th key=${key} scope="col">${title}</th>`)}</tr></thead>
        <tbody>${names.map(
          (name, i) => html`<tr key=${name}><th scope="row">${name}</th>
            ${CHARTS.map(({ key }) => {
              const value = history[i][history[i].length - 1]?.[key];
              return html`<td key=${key}>${value === null || value === undefined ? "–" : short(value)}</td>`;
            })}</tr>`,
        )}</tbody>
      </table>
    </div>
  </section>`;
}
