// Sparse: the words of the vocabulary that stand for a text, and their weights.
import { call } from "../api.js";
import { Bars, Card, HeatMap, ModelField, TextField, Workbench } from "../components.js";
import { rank } from "../math.js";
import { splitLines, useModel, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const EXAMPLE = `where is the big river?
the old city is on the river
a red bird and a blue fish`;
const MAX_WORDS = 25;

export default function Sparse({ models }) {
  const [model, setModel] = useModel("sparse", models);
  const [text, setText] = useStored("sparse.texts", EXAMPLE);
  const texts = splitLines(text);
  const body = { model: model.id, input: texts, return_tokens: true, truncate_prompt_tokens: -1 };
  const job = useRun("sparse", async (signal) => {
    const reply = await call("/v1/sparse_embeddings", body, { signal });
    return { texts, vectors: reply.data.data };
  });
  const inputs = html`<${ModelField} models=${models} model=${model} onChange=${setModel} />
    <${TextField} label="Texts" hint="one per line" rows="6" value=${text} onChange=${setText} />`;
  return html`<${Workbench} title="Sparse" job=${job} inputs=${inputs} requests=${[{ path: "/v1/sparse_embeddings", body }]}
    about="A weight for every word of the vocabulary that matters for the text, also for words that it does not contain."
    isRunnable=${texts.length > 0}>
    ${job.result && html`<${Results} ...${job.result} />`}
  <//>`;
}

function Results({ texts, vectors }) {
  const matrix = vectors.map((a) => vectors.map((b) => dotProduct(a, b)));
  return html`<div class="columns">
      ${vectors.map((vector, i) => html`<${Words} key=${i} text=${texts[i]} vector=${vector} />`)}
    </div>
    ${texts.length > 1 &&
    html`<${Card} title="Dot products" hint="What sparse scoring returns for every two texts.">
      <${HeatMap} caption="Dot product of every two texts" rows=${texts.map((text, i) => `${i + 1}  ${text}`)}
        columns=${texts.map((_, i) => i + 1)} matrix=${matrix} />
    <//>`}`;
}

function Words({ text, vector }) {
  const items = rank(vector.weights).slice(0, MAX_WORDS).map((i) => ({ id: i, label: vector.tokens[i] || `id ${vector.token_ids[i]}`, value: vector.weights[i] }));
  const count = vector.weights.length;
  return html`<${Card} title=${text} hint=${`${count} words have a weight${count > MAX_WORDS ? `; the ${MAX_WORDS} largest are shown` : ""}`}>
    <${Bars} items=${items} areShort=${true} label=${`Words and weights of: ${text}`} />
  <//>`;
}

function dotProduct(a, b) {
  const weights = new Map(a.token_ids.map((id, i) => [id, a.weights[i]]));
  return b.token_ids.reduce((sum, id, i) => sum + (weights.get(id) ?? 0) * b.weights[i], 0);
}
