// Entities: spans of texts with their classes.
import { call } from "../api.js";
import { Card, ModelField, SelectField, TextField, Workbench } from "../components.js";
import { format, splitLines, useModel, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const EXAMPLE = `The old man lives in Berlin and the big river is in Paris.
Who was in the city?`;
const STRATEGIES = ["simple", "first", "average", "max", "none"].map((name) => [name, name]);
const NUM_COLOURS = 4;

export default function Entities({ models }) {
  const [model, setModel] = useModel("entities", models);
  const [text, setText] = useStored("entities.texts", EXAMPLE);
  const [strategy, setStrategy] = useStored("entities.strategy", "simple");
  const [labels, setLabels] = useStored("entities.labels", "");
  const texts = splitLines(text);
  const body = {
    model: model.id,
    input: texts,
    aggregation_strategy: strategy,
    ...(labels.trim() && { labels: labels.split(",").map((label) => label.trim()).filter(Boolean) }),
  };
  const job = useRun("entities", async (signal) => {
    const reply = await call("/entities", body, { signal });
    return { texts, entries: reply.data.data };
  });
  const inputs = html`<${ModelField} models=${models} model=${model} onChange=${setModel} />
    <${TextField} label="Texts" hint="one per line" rows="6" value=${text} onChange=${setText} />
    <${SelectField} label="Tokens are merged by" value=${strategy} options=${STRATEGIES} onChange=${setStrategy} />
    <${TextField} label="Labels" hint="with commas; only for GLiNER models" value=${labels} onChange=${setLabels} />`;
  return html`<${Workbench} title="Entities" about="Names, places and whatever else the model finds in a text." job=${job} inputs=${inputs}
    requests=${[{ path: "/entities", body }]} isRunnable=${texts.length > 0}>
    ${job.result && job.result.entries.map((entry, i) => html`<${Found} key=${i} text=${job.result.texts[i]} entry=${entry} />`)}
  <//>`;
}

function Found({ text, entry }) {
  const kinds = [...new Set(entry.entities.map(labelOf))];
  const count = entry.entities.length;
  const hint = `${count} ${count === 1 ? "entity" : "entities"}${entry.truncated ? "; the text was truncated" : ""}`;
  return html`<${Card} title="Text" hint=${hint}>
    <p class="marked">${cut(text, entry.entities).map((part, i) =>
      part.entity
        ? html`<mark key=${i} class=${`kind${kinds.indexOf(labelOf(part.entity)) % NUM_COLOURS}`}>${part.text}<small>${labelOf(part.entity)}</small></mark>`
        : part.text,
    )}</p>
    ${entry.entities.length > 0 &&
    html`<table class="plain">
      <caption class="hidden">Entities</caption>
      <thead><tr><th scope="col">Text</th><th scope="col">Label</th><th scope="col">Score</th></tr></thead>
      <tbody>${entry.entities.map(
        (entity, i) => html`<tr key=${i}><td>${entity.text}</td><td>${labelOf(entity)}</td><td>${format(entity.score)}</td></tr>`,
      )}</tbody>
    </table>`}
  <//>`;
}

const labelOf = (entity) => entity.entity_group ?? entity.entity;

/** Cut a text at its entities, whose positions count code points; an entity inside another one is left out. */
function cut(text, entities) {
  const characters = [...text];
  const parts = [];
  let end = 0;
  for (const entity of [...entities].sort((a, b) => a.start - b.start)) {
    if (entity.start < end) continue;
    parts.push({ text: characters.slice(end, entity.start).join("") });
    parts.push({ text: characters.slice(entity.start, entity.end).join(""), entity });
    end = entity.end;
  }
  return [...parts, { text: characters.slice(end).join("") }];
}
