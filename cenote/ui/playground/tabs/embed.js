// Embed: cosine similarities, a map of the texts, neighbours, and the tokens that the model reads.
import { call } from "../api.js";
import { Bars, Card, HeatMap, ModelField, ROLES, SelectField, TextField, Workbench } from "../components.js";
import { rank, similarityMatrix } from "../math.js";
import { TextMap } from "../text_map.js";
import { Tokens, fetchTokens } from "../tokens.js";
import { format, splitLines, useModel, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const EXAMPLE = `The cat sits outside.
A kitten is lying on the doorstep.
The new movie is awesome.
I watched a great film last night.
How do I change my password?
Resetting a forgotten login
Rivers in Mexico run below the ground.
A cenote is a natural pit with groundwater.`;

export default function Embed({ models }) {
  const [model, setModel] = useModel("embed", models);
  const [text, setText] = useStored("embed.texts", EXAMPLE);
  const [role, setRole] = useStored("embed.role", "");
  const [limit, setLimit] = useStored("embed.limit", "");
  const texts = splitLines(text);
  const body = {
    model: model.id,
    input: texts,
    truncate_prompt_tokens: limit === "" ? -1 : Number(limit),
    return_token_counts: true,
    ...(role && { input_type: role }),
  };
  const job = useRun("embed", async (signal) => {
    const reply = await call("/v1/embeddings", body, { signal });
    const entries = reply.data.data;
    const tokens = await fetchTokens(model.id, texts, entries.map((entry) => entry.token_counts), signal);
    return { texts, vectors: entries.map((entry) => entry.embedding), tokens, usage: reply.data.usage.prompt_tokens };
  });
  const inputs = html`<${ModelField} models=${models} model=${model} onChange=${setModel} />
    <${TextField} label="Texts" hint="one per line" rows="9" value=${text} onChange=${setText} />
    <div class="fields">
      <${SelectField} label="Prompt for" value=${role} options=${ROLES} onChange=${setRole} />
      <${TextField} label="Truncate to" hint="tokens" type="number" min="1" max=${model.max_model_len}
        placeholder=${model.max_model_len} value=${limit} onChange=${setLimit} />
    </div>`;
  return html`<${Workbench} title="Embed" about="A vector for every text: texts with similar meanings have similar vectors."
    job=${job} inputs=${inputs} requests=${[{ path: "/v1/embeddings", body }]} isRunnable=${texts.length > 0}
    note=${job.result && `${job.result.vectors[0].length} dimensions, ${job.result.usage} tokens`}>
    ${job.result && html`<${Results} ...${job.result} />`}
  <//>`;
}

function Results({ texts, vectors, tokens }) {
  const matrix = similarityMatrix(vectors, vectors);
  const rows = texts.map((text, i) => `${i + 1}  ${text}`);
  return html`<${Card} title="Cosine similarity">
      <${HeatMap} caption="Cosine similarity of every two texts" rows=${rows} columns=${texts.map((_, i) => i + 1)} matrix=${matrix} />
    <//>
    <div class="columns">
      ${texts.length > 2 && html`<${Card} title="Map"><${TextMap} texts=${texts} vectors=${vectors} /><//>`}
      ${texts.length > 1 && html`<${Neighbours} texts=${texts} matrix=${matrix} />`}
    </div>
    <${Card} title="Tokens" hint="What the model reads. Tokens after the truncation point are left out.">
      <${Tokens} tokens=${tokens} />
    <//>`;
}

function Neighbours({ texts, matrix }) {
  const [wanted, setSelected] = useStored("embed.neighbour", "0");
  const selected = Number(wanted) < texts.length ? Number(wanted) : 0;
  const others = rank(matrix[selected]).filter((index) => index !== selected);
  const items = others.map((index) => ({ id: index, label: texts[index], value: matrix[selected][index] }));
  return html`<${Card} title="Neighbours">
    <${SelectField} label="Of the text" value=${String(selected)} onChange=${setSelected}
      options=${texts.map((text, i) => [String(i), `${i + 1}  ${text}`])} />
    <${Bars} items=${items} label=${`Texts by similarity, best first; the best has ${format(items[0].value)}`} />
  <//>`;
}
