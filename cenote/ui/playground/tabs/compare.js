// Compare: the same query and documents with two models or two settings, and how the ranking changes.
import { canEmbed } from "../abilities.js";
import { Bars, Card, ModelField, Move, SelectField, TextField, Workbench } from "../components.js";
import { kendall, rank } from "../math.js";
import { listPoolings, listRequests, scoreDocuments, TYPE_OPTIONS } from "../scoring.js";
import { format, splitLines, useModel, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const QUERY = "How do I get back into my account?";
const DOCUMENTS = `Resetting a forgotten password
Opening a new bank account
Account statements for tax purposes
You can log in again after confirming your e-mail address.
Our accountants answer within two days.
The way back to the station takes ten minutes.`;
const ROLE_OPTIONS = [["", "none"], ["roles", "query and document"]];
const DEFAULTS = { pooling: "", prompts: "", dimensions: "", type: "float" };

export default function Compare({ models }) {
  const [query, setQuery] = useStored("compare.query", QUERY);
  const [text, setText] = useStored("compare.documents", DOCUMENTS);
  const [modelA, setModelA] = useModel("compare.a", models);
  const [modelB, setModelB] = useModel("compare.b", models);
  const [settingsA, setSettingsA] = useStored("compare.settings.a", DEFAULTS);
  const [settingsB, setSettingsB] = useStored("compare.settings.b", { ...DEFAULTS, type: "binary" });
  const documents = splitLines(text);
  const sides = [
    { name: "A", model: modelA, settings: settingsA, setModel: setModelA, setSettings: setSettingsA },
    { name: "B", model: modelB, settings: settingsB, setModel: setModelB, setSettings: setSettingsB },
  ];
  const job = useRun("compare", async (signal) => {
    const scores = await Promise.all(sides.map((side) => scoreDocuments(side, query, documents, signal)));
    return { documents, titles: sides.map(describe), scores };
  });
  const inputs = html`<${TextField} label="Query" value=${query} onChange=${setQuery} />
    <${TextField} label="Documents" hint="one per line" rows="7" value=${text} onChange=${setText} />
    ${sides.map((side) => html`<${Side} key=${side.name} ...${side} models=${models} />`)}`;
  return html`<${Workbench} title="Compare" about="The same ranking with two models, or with two settings of one." job=${job} inputs=${inputs}
    requests=${sides.flatMap((side) => listRequests(side, query, documents))}
    isRunnable=${query.trim() !== "" && documents.length > 0}>
    ${job.result && html`<${Results} ...${job.result} />`}
  <//>`;
}

function Side({ name, model, settings, setModel, setSettings, models }) {
  const change = (field) => (value) => setSettings({ ...settings, [field]: value });
  return html`<fieldset>
    <legend>${name}</legend>
    <${ModelField} models=${models} model=${model} onChange=${setModel} />
    ${canEmbed(model)
      ? html`<div class="fields">
          <${SelectField} label="Pooling" value=${settings.pooling} options=${listPoolings(model)} onChange=${change("pooling")} />
          <${SelectField} label="Prompts" value=${settings.prompts} options=${ROLE_OPTIONS} onChange=${change("prompts")} />
          <${TextField} label="Dimensions" type="number" min="1" max=${model.embedding_size} placeholder=${model.embedding_size}
            value=${settings.dimensions} onChange=${change("dimensions")} />
          <${SelectField} label="Type" value=${settings.type} options=${TYPE_OPTIONS} onChange=${change("type")} />
        </div>`
      : html`<p class="muted">Scores by ${model.score_types[0]}; it has no settings.</p>`}
  </fieldset>`;
}

function describe({ name, model, settings }) {
  const changed = canEmbed(model)
    ? [settings.pooling, settings.prompts && "with prompts", settings.dimensions && `${settings.dimensions} dimensions`, settings.type]
    : [model.score_types[0]];
  return `${name}: ${[model.id, ...changed.filter(Boolean)].join(", ")}`;
}

function Results({ documents, titles, scores }) {
  const orders = scores.map(rank);
  const places = orders[0].map((_, index) => orders[0].indexOf(index));
  const numMoved = orders[1].filter((index, place) => places[index] !== place).length;
  return html`<${Card} title="Agreement">
      <p><strong class="score">${format(kendall(...scores), 3)}</strong> Kendall's tau;
        ${" "}${numMoved} of ${documents.length} documents have another place in B.</p>
    <//>
    <div class="columns">
      ${titles.map((title, side) => {
        const items = orders[side].map((index, place) => ({
          id: index,
          label: documents[index],
          value: scores[side][index],
          note: side === 1 && html`<${Move} before=${places[index]} after=${place} />`,
        }));
        return html`<${Card} key=${side} title=${title}><${Bars} items=${items} label=${`Documents as ranked by ${title}, best first`} /><//>`;
      })}
    </div>`;
}
