// Parts that several tabs use: fields, bars, heat maps, and the frame of inputs and results.
import { extremes } from "./math.js";
import { CopyAs } from "./snippets.js";
import { format } from "./state.js";
import { html } from "./vendor/preact-htm.js";

export function ModelField({ label = "Model", models, model, onChange }) {
  return html`<label class="field">
    <span>${label}</span>
    <select value=${model.id} onChange=${(event) => onChange(event.target.value)}>
      ${models.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
    </select>
  </label>`;
}

export function SelectField({ label, value, options, onChange }) {
  return html`<label class="field">
    <span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
    </select>
  </label>`;
}

export function TextField({ label, value, onChange, rows, hint, type = "text", ...others }) {
  const change = (event) => onChange(event.target.value);
  return html`<label class="field">
    <span>${label}${hint && html` <small class="muted">${hint}</small>`}</span>
    ${rows
      ? html`<textarea rows=${rows} value=${value} onInput=${change} spellcheck="false" ...${others}></textarea>`
      : html`<input type=${type} value=${value} onInput=${change} ...${others} />`}
  </label>`;
}

export const ROLES = [
  ["", "none"],
  ["query", "query"],
  ["document", "document"],
];

/** The inputs of a tab with its button, beside the results. Ctrl-Enter in a field runs it too. */
export function Workbench({ title, about, job, inputs, children, requests, isRunnable = true, note }) {
  const submit = (event) => {
    event.preventDefault();
    if (isRunnable) job.run();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };
  return html`<div class="split">
    <form class="card" onSubmit=${submit} onKeyDown=${onKeyDown} aria-label=${`${title}: inputs`}>
      <p class="about">${about}</p>
      ${inputs}
      <div class="row">
        <button class="primary" disabled=${!isRunnable || job.isBusy}>${job.isBusy ? "Running" : "Run"}</button>
        <span class="muted hint">Ctrl + Enter</span>
      </div>
      <${CopyAs} requests=${requests} />
    </form>
    <section class="results" aria-label=${`${title}: results`}>
      <p class="status muted" role="status">${describe(job, note)}</p>
      ${job.error && html`<p class="error" role="alert">${job.error.message}</p>`}
      ${job.result && !job.error ? children : null}
      ${!job.result && !job.error && html`<p class="empty muted">Results appear here.</p>`}
    </section>
  </div>`;
}

function describe(job, note) {
  if (job.isBusy) return "Running…";
  if (job.error) return "The request failed.";
  return job.result ? `Done in ${Math.round(job.ms)} ms${note ? `; ${note}` : ""}.` : "";
}

export function Card({ title, children, hint }) {
  return html`<section class="card">
    <h3>${title}</h3>
    ${hint && html`<p class="muted">${hint}</p>`}
    ${children}
  </section>`;
}

/** Values as bars from 0, or from the lowest if it is negative, with their numbers; `note` is shown after the label; short labels fit beside the bars. */
export function Bars({ items, digits = 4, label, areShort = false }) {
  const [lowest, high] = extremes(items.map((item) => item.value));
  const low = Math.min(0, lowest);
  const share = (value) => (value - low) / (high - low || 1);
  return html`<ol class=${areShort ? "bars short" : "bars"} aria-label=${label}>
    ${items.map(
      (item, index) => html`<li key=${item.id ?? index}>
        <span class="bar-label">${item.label}${item.note && html` ${item.note}`}</span>
        <span class="track" aria-hidden="true">
          <span class=${item.value < 0 ? "fill negative" : "fill"} style=${{ width: `${100 * share(item.value)}%` }}></span>
        </span>
        <span class="number">${format(item.value, digits)}</span>
      </li>`,
    )}
  </ol>`;
}

const MAX_CELLS = 20000; // a browser draws more of them slowly
const MIN_SHOWN = 100; // rows or columns

/** A matrix of similarities as a table with coloured cells; the best cell of every row can be marked. */
export function HeatMap({ caption, rows: allRows, columns: allColumns, matrix: all, digits = 2, marksBest = false, isFromZero = true }) {
  const rows = allRows.slice(0, Math.max(MIN_SHOWN, Math.floor(MAX_CELLS / allColumns.length)));
  const columns = allColumns.slice(0, Math.max(MIN_SHOWN, Math.floor(MAX_CELLS / allRows.length)));
  const matrix = all.slice(0, rows.length).map((values) => values.slice(0, columns.length));
  const isCropped = rows.length < allRows.length || columns.length < allColumns.length;
  const [lowest, highest] = extremes(matrix.flat());
  const low = isFromZero ? 0 : lowest;
  const high = Math.max(highest, low + 1e-9);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table class="heat">
      <caption class="hidden">${caption}</caption>
      <thead>
        <tr>
          <td></td>
          ${columns.map((column, j) => html`<th key=${j} scope="col">${column}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${matrix.map((values, i) => {
          const best = marksBest ? values.indexOf(extremes(values)[1]) : -1;
          return html`<tr key=${i}>
            <th scope="row" title=${rows[i]}><span>${rows[i]}</span></th>
            ${values.map((value, j) => {
              const share = value < low ? Math.min(1, -value) : (value - low) / (high - low);
              return html`<td key=${j} class=${`${value < low ? "cold" : "warm"}${j === best ? " best" : ""}`}
                style=${{ "--share": share.toFixed(3) }}>${format(value, digits)}</td>`;
            })}
          </tr>`;
        })}
      </tbody>
    </table>
    ${isCropped && html`<p class="muted">Shown are ${rows.length} of ${allRows.length} rows and ${columns.length} of ${allColumns.length} columns.</p>`}
  </div>`;
}

/** How far a document has moved against its place before. */
export function Move({ before, after }) {
  const moved = before - after;
  const text = moved > 0 ? `▲ ${moved}` : moved < 0 ? `▼ ${-moved}` : "=";
  const spoken = moved > 0 ? `up ${moved}` : moved < 0 ? `down ${-moved}` : "same place";
  return html`<span class=${moved > 0 ? "move up" : moved < 0 ? "move down" : "move"}>
    <span aria-hidden="true">${text}</span><span class="hidden">${spoken}</span>
  </span>`;
}
