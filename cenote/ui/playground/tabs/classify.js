// Classify: the probability of every class.
import { call } from "../api.js";
import { Bars, Card, ModelField, SelectField, TextField, Workbench } from "../components.js";
import { rank } from "../math.js";
import { splitLines, useModel, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const EXAMPLE = `The food was great and the people are good.
Never again: a bad place.`;
const MAX_CLASSES = 20;

export default function Classify({ models }) {
  const [model, setModel] = useModel("classify", models);
  const [text, setText] = useStored("classify.texts", EXAMPLE);
  const [activation, setActivation] = useStored("classify.activation", "yes");
  const texts = splitLines(text);
  const body = {
    model: model.id,
    input: texts,
    truncate_prompt_tokens: -1,
    ...(activation === "no" && { use_activation: false }),
  };
  const job = useRun("classify", async (signal) => {
    const reply = await call("/classify", body, { signal });
    return { texts, labels: model.labels, entries: reply.data.data };
  });
  const inputs = html`<${ModelField} models=${models} model=${model} onChange=${setModel} />
    <${TextField} label="Texts" hint="one per line" rows="6" value=${text} onChange=${setText} />
    <${SelectField} label="Values" value=${activation} options=${[["yes", "probabilities"], ["no", "logits"]]} onChange=${setActivation} />`;
  return html`<${Workbench} title="Classify" about="The probability of every class of the model." job=${job} inputs=${inputs}
    requests=${[{ path: "/classify", body }]} isRunnable=${texts.length > 0}>
    ${job.result && html`<div class="columns">
      ${job.result.entries.map((entry, i) => html`<${Classes} key=${i} text=${job.result.texts[i]} entry=${entry} labels=${job.result.labels} />`)}
    </div>`}
  <//>`;
}

function Classes({ text, entry, labels }) {
  const items = rank(entry.probs)
    .slice(0, MAX_CLASSES)
    .map((i) => ({ id: i, label: labels?.[i] ?? `class ${i}`, value: entry.probs[i] }));
  const hint = entry.probs.length > MAX_CLASSES ? `The ${MAX_CLASSES} most probable of ${entry.probs.length} classes` : "";
  return html`<${Card} title=${text} hint=${hint}><${Bars} items=${items} areShort=${true} label=${`Classes of: ${text}`} /><//>`;
}
