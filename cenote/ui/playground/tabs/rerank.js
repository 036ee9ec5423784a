// Rerank: a query and documents, scored by every model and method that is chosen, side by side.
import { listScorers } from "../abilities.js";
import { call } from "../api.js";
import { Bars, Card, Move, TextField, Workbench } from "../components.js";
import { splitLines, useRun, useStored } from "../state.js";
import { html } from "../vendor/preact-htm.js";

const QUERY = "Where does the water of a cenote come from?";
const DOCUMENTS = `The Maya used cenotes for sacrificial offerings.
A cenote fills with groundwater that flows through the limestone.
Sinkholes form where limestone bedrock collapses.
Tap water in the city comes from a reservoir.
Rain drains through the rock and feeds underground rivers.
The museum opens at nine in the morning.`;

export default function Rerank({ models }) {
  const scorers = listScorers(models);
  const [query, setQuery] = useStored("rerank.query", QUERY);
  const [text, setText] = useStored("rerank.documents", DOCUMENTS);
  const [chosen, setChosen] = useStored("rerank.scorers", pickDefaults(scorers));
  const documents = splitLines(text);
  const used = scorers.filter((scorer) => chosen.includes(scorer.id));
  const requests = used.map((scorer) => ({
    path: "/rerank",
    body: { model: scorer.model, query, documents, score_type: scorer.type, truncate: true, return_documents: false },
  }));
  const job = useRun("rerank", async (signal) => {
    const replies = await Promise.all(requests.map(({ path, body }) => call(path, body, { signal })));
    return { documents, columns: used.map((scorer, i) => ({ scorer, results: replies[i].data.results, ms: replies[i].ms })) };
  });
  const toggle = (id) => setChosen(chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id]);
  const inputs = html`<${TextField} label="Query" value=${query} onChange=${setQuery} />
    <${TextField} label="Documents" hint="one per line" rows="9" value=${text} onChange=${setText} />
    <fieldset>
      <legend>Models and methods</legend>
      ${scorers.map(
        (scorer) => html`<label class="check" key=${scorer.id}>
          <input type="checkbox" checked=${chosen.includes(scorer.id)} onChange=${() => toggle(scorer.id)} />
          <span>${scorer.model} <span class="muted">${scorer.type}</span></span>
        </label>`,
      )}
    </fieldset>`;
  return html`<${Workbench} title="Rerank" job=${job} inputs=${inputs} requests=${requests}
    about="Documents in order of their relevance to a query. Cross-encoders read both together; bi-encoders and late interaction compare vectors."
    isRunnable=${query.trim() !== "" && documents.length > 0 && used.length > 0}
    note="▲ and ▼: places gained and lost against the order of the documents">
    ${job.result && html`<div class="columns">
      ${job.result.columns.map((column) => html`<${Ranking} key=${column.scorer.id} ...${column} documents=${job.result.documents} />`)}
    </div>`}
  <//>`;
}

/** The default method of up to four models, of different kinds if there are such. */
function pickDefaults(scorers) {
  const types = new Set();
  const distinct = scorers.filter((scorer) => scorer.isDefault && !types.has(scorer.type) && types.add(scorer.type));
  return distinct.slice(0, 4).map((scorer) => scorer.id);
}

function Ranking({ scorer, results, documents, ms }) {
  const items = results.map((result, place) => ({
    id: result.index,
    label: documents[result.index],
    note: html`<${Move} before=${result.index} after=${place} />`,
    value: result.relevance_score,
  }));
  return html`<${Card} title=${`${scorer.model}, ${scorer.type}`} hint=${`${Math.round(ms)} ms`}>
    <${Bars} items=${items} label=${`Documents as ranked by ${scorer.model}, best first`} />
  <//>`;
}
