// Late interaction: every token of the query against every token of the document, or every patch of an image.
import { call, readDataUrl } from "../api.js";
import { Card, HeatMap, ModelField, TextField, Workbench } from "../components.js";
import { dot, maxSim, similarityMatrix } from "../math.js";
import { PatchMap } from "../patch_map.js";
import { fetchRows, makePoolingBody, pathOfPooling } from "../token_rows.js";
import { format, useModel, useRun, useStored } from "../state.js";
import { html, useState } from "../vendor/preact-htm.js";

const QUERY = "who lives in the old city?";
const DOCUMENT = "People have lived in the old part of Paris, on the river, for two thousand years.";
const MAX_COLUMNS = 200;

export default function Late({ models }) {
  const [model, setModel] = useModel("late", models);
  const [query, setQuery] = useStored("late.query", QUERY);
  const [document, setDocument] = useStored("late.document", DOCUMENT);
  const [image, setImage] = useStored("late.image", null);
  const shown = model.supports_images ? image : null;
  const input = shown ? { image: shown.url } : { text: document };
  const scored = shown ? { content: [{ type: "image_url", image_url: { url: shown.url } }] } : document;
  const score = { model: model.id, queries: query, documents: [scored], score_type: "late-interaction", truncate_prompt_tokens: -1 };
  const requests = [
    { path: pathOfPooling, body: makePoolingBody(model, { text: query }, "query") },
    { path: pathOfPooling, body: makePoolingBody(model, input, "document") },
    { path: "/score", body: score },
  ];
  const job = useRun("late", async (signal) => {
    const [queryRows, documentRows, reply] = await Promise.all([
      fetchRows(model, { text: query }, "query", signal),
      fetchRows(model, input, "document", signal),
      call("/score", score, { signal }),
    ]);
    return { queryRows, documentRows, image: shown, score: reply.data.data[0].score };
  });
  const inputs = html`<${ModelField} models=${models} model=${model} onChange=${setModel} />
    <${TextField} label="Query" value=${query} onChange=${setQuery} />
    ${shown ? null : html`<${TextField} label="Document" rows="5" value=${document} onChange=${setDocument} />`}
    ${model.supports_images && html`<${ImageField} image=${image} onChange=${setImage} />`}`;
  return html`<${Workbench} title="Late interaction" job=${job} inputs=${inputs} requests=${requests}
    about="Every token of the query finds its best match in the document; the score is the sum of these matches (MaxSim)."
    isRunnable=${query.trim() !== "" && (shown || document.trim() !== "")}>
    ${job.result && html`<${Results} ...${job.result} />`}
  <//>`;
}

function ImageField({ image, onChange }) {
  const [isOver, setOver] = useState(false);
  const take = async (files) => {
    const file = [...files].find(({ type }) => type.startsWith("image/"));
    if (file) onChange({ name: file.name, url: await readDataUrl(file) });
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files);
  };
  const onDragOver = (event) => {
    event.preventDefault();
    setOver(true);
  };
  return html`<div class=${isOver ? "drop over" : "drop"} onDrop=${onDrop} onDragOver=${onDragOver} onDragLeave=${() => setOver(false)}>
    <label class="field"><span>Image instead of the text <small class="muted">drop one here</small></span>
      <input type="file" accept="image/*" onChange=${(event) => take(event.target.files)} />
    </label>
    ${image && html`<div class="row"><span class="muted">${image.name}</span>
      <button type="button" class="small" onClick=${() => onChange(null)}>Use the text</button></div>`}
  </div>`;
}

function Results({ queryRows, documentRows, image, score }) {
  const matrix = similarityMatrix(queryRows.vectors, documentRows.vectors, dot);
  const columns = documentRows.labels.slice(0, MAX_COLUMNS);
  return html`<${Card} title="Score" hint="The sum of the best match of every query token.">
      <p><strong class="score">${format(maxSim(matrix))}</strong> here, <strong class="score">${format(score)}</strong> from /score${image && ", which does not use the chat template"}</p>
    <//>
    ${image &&
    documentRows.patches.length > 0 &&
    html`<${Card} title="Patches of the image">
      <${PatchMap} image=${image} labels=${queryRows.labels} matrix=${matrix.map((row) => documentRows.patches.map((j) => row[j]))} />
    <//>`}
    <${Card} title="Similarity of tokens" hint="Rows: query. Columns: document. The best match of every query token has a frame.">
      <${HeatMap} caption="Similarity of every query token and every document token" rows=${queryRows.labels} columns=${columns}
        matrix=${matrix.map((row) => row.slice(0, MAX_COLUMNS))} marksBest=${true} isFromZero=${false} />
      ${documentRows.labels.length > MAX_COLUMNS &&
      html`<p class="muted">The first ${MAX_COLUMNS} of ${documentRows.labels.length} tokens of the document are shown.</p>`}
    <//>`;
}
