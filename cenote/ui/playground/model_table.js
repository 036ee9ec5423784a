// The models of the server, with buttons for admin keys.
import { call } from "./api.js";
import { TextField } from "./components.js";
import { html, useState } from "./vendor/preact-htm.js";

const MIB = 1024 ** 2;

export function ModelTable({ rows, isKnown, onChange }) {
  const [status, setStatus] = useState("");
  const [busy, setBusy] = useState("");
  const change = async (action, body) => {
    setBusy(body.name);
    setStatus(`${action === "load" ? "Loading" : "Unloading"} ${body.name}…`);
    try {
      const row = (await call(`/admin/models/${action}`, body)).data;
      setStatus(`${row.name} is ${row.state}.`);
    } catch (error) {
      setStatus(error.message);
    }
    setBusy("");
    onChange();
  };
  if (!rows) {
    return html`<section class="card"><h3>Models</h3>
      <p class="muted">${isKnown ? "Models can be loaded and unloaded with an admin key (--admin-api-key) or, on the machine of a server without keys, with --allow-local-admin." : "Loading…"}</p></section>`;
  }
  return html`<section class="card">
    <h3>Models</h3>
    <p role="status" class="muted">${status}</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Models">
      <table class="plain">
        <caption class="hidden">Models of the server</caption>
        <thead><tr>${["Name", "State", "Tasks", "Type, device", "Memory", "Queue", "Tokens/s", "Action"].map((title) => html`<th key=${title} scope="col">${title}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<${Row} key=${row.name} row=${row} isBusy=${busy === row.name} onChange=${change} />`)}</tbody>
      </table>
    </div>
    <${LoadForm} onLoad=${(name, source) => change("load", { name, source })} />
  </section>`;
}

function Row({ row, isBusy, onChange }) {
  const isLoaded = ["ready", "loading", "restarting"].includes(row.state);
  const action = isLoaded ? "unload" : "load";
  return html`<tr>
    <th scope="row">${row.name}<br /><small>${row.source === row.name ? "" : row.source}</small></th>
    <td>${row.state}${row.error && html`<br /><small>${row.error}</small>`}</td>
    <td>${row.tasks.join(", ")}</td>
    <td>${[row.dtype, row.device].filter(Boolean).join(", ")}</td>
    <td>${row.memory_bytes ? `${Math.round(row.memory_bytes / MIB)} MiB` : "–"}</td>
    <td>${row.queued_tokens}</td>
    <td>${Math.round(row.tokens_per_second)}</td>
    <td><button type="button" class="small" disabled=${isBusy} aria-label=${`${action} ${row.name}`}
      onClick=${() => onChange(action, { name: row.name })}>${isLoaded ? "Unload" : "Load"}</button></td>
  </tr>`;
}

function LoadForm({ onLoad }) {
  const [name, setName] = useState("");
  const [source, setSource] = useState("");
  const submit = (event) => {
    event.preventDefault();
    onLoad(name.trim() || source.trim(), source.trim());
  };
  return html`<form class="fields" onSubmit=${submit} aria-label="Load another model">
    <${TextField} label="Load a model" hint="hub name or folder" value=${source} onChange=${setSource} required=${true} />
    <${TextField} label="Name" hint="optional" value=${name} onChange=${setName} />
    <div class="field"><span aria-hidden="true"> </span><button>Load</button></div>
  </form>`;
}
