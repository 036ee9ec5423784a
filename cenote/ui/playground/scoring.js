// Scores of documents for a query, with the settings of embeddings that can be compared.
import { canEmbed } from "./abilities.js";
import { call } from "./api.js";
import { cosine, norm, POOLINGS, unpackBits } from "./math.js";

export const TYPE_OPTIONS = [["float", "float"], ["int8", "int8"], ["binary", "binary"]];

/** The pooling of the model, and those that the page can compute from the vectors of the tokens. */
export function listPoolings(model) {
  const own = [["", model.pooling ? `${model.pooling} (own)` : "its own"]];
  return model.tasks.includes("token_embed") ? [...own, ...Object.keys(POOLINGS).map((name) => [name, name])] : own;
}

export function listRequests({ model, settings }, query, documents) {
  if (!canEmbed(model)) return [makeScoreRequest(model, query, documents)];
  return [makeEmbedRequest(model, settings, [query], "query"), makeEmbedRequest(model, settings, documents, "document")];
}

/** Return the score of every document: the cosine of vectors, or what the model itself says. */
export async function scoreDocuments(side, query, documents, signal) {
  const replies = await Promise.all(
    listRequests(side, query, documents).map(({ path, body }) => call(path, body, { signal })),
  );
  if (!canEmbed(side.model)) return replies[0].data.data.map((entry) => entry.score);
  const [[vector], vectors] = replies.map((reply) => reply.data.data.map((entry) => readVector(entry, side.settings)));
  return vectors.map((other) => cosine(vector, other));
}

const makeScoreRequest = (model, query, documents) => ({
  path: "/score",
  body: { model: model.id, queries: query, documents, truncate_prompt_tokens: -1 },
});

function makeEmbedRequest(model, settings, input, role) {
  const common = { model: model.id, input, truncate_prompt_tokens: -1, ...(settings.prompts && { input_type: role }) };
  if (settings.pooling) return { path: "/pooling", body: { ...common, task: "token_embed", normalize: false } };
  return {
    path: "/v1/embeddings",
    body: {
      ...common,
      ...(settings.dimensions && { dimensions: Number(settings.dimensions) }),
      ...(settings.type !== "float" && { output_dtype: settings.type }),
    },
  };
}

function readVector(entry, settings) {
  if (!settings.pooling) return settings.type === "binary" ? unpackBits(entry.embedding) : entry.embedding;
  const pooled = POOLINGS[settings.pooling](entry.data);
  const cut = settings.dimensions ? pooled.slice(0, Number(settings.dimensions)) : pooled;
  if (settings.type === "binary") return cut.map((value) => (value >= 0 ? 1 : -1));
  if (settings.type === "int8") return quantize(cut);
  return cut;
}

// as the server does: a unit vector times 127
function quantize(vector) {
  const length = norm(vector) || 1;
  return vector.map((value) => Math.round((value / length) * 127));
}
