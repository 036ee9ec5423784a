// The vectors of the tokens of a text or an image, with a label for each.
import { call } from "./api.js";

export const pathOfPooling = "/pooling";

export function makePoolingBody(model, input, role) {
  const common = { model: model.id, task: "token_embed", role, return_token_counts: true };
  return input.image ? { ...common, messages: toMessages(input.image) } : { ...common, input: [input.text], truncate_prompt_tokens: -1 };
}

const toMessages = (image) => [{ role: "user", content: [{ type: "image_url", image_url: { url: image } }] }];

/** Return the vectors of a text or an image, their labels, and which of them are the patches of the image. */
export async function fetchRows(model, input, role, signal) {
  const prompt = input.image
    ? { messages: toMessages(input.image), add_generation_prompt: false }
    : { prompt: input.text };
  const [pooled, tokenized] = await Promise.all([
    call(pathOfPooling, makePoolingBody(model, input, role), { signal }),
    call("/tokenize", { model: model.id, return_token_strs: true, ...prompt }, { signal }),
  ]);
  const { data: vectors, token_counts: counts } = pooled.data.data[0];
  const labels = labelRows(tokenized.data.token_strs, vectors.length, counts.given);
  return { vectors, labels, patches: input.image ? findPatches(labels) : [] };
}

const isPunctuation = (token) => /^[!-/:-@[-`{-~]$/.test(token.replace(/^[▁Ġ]/, ""));

/**
 * Label the rows of a model that may add a marker and expansion tokens, and leave out punctuation (ColBERT).
 * `given`: number of tokens of the input as the model counts them, with the marker.
 */
export function labelRows(tokens, count, given) {
  const marked = given === tokens.length + 1 ? [tokens[0], "[marker]", ...tokens.slice(1)] : tokens;
  if (count >= marked.length) return [...marked, ...Array.from({ length: count - marked.length }, () => "[expansion]")];
  const words = marked.filter((token) => !isPunctuation(token));
  return words.length === count ? words : Array.from({ length: count }, (_, i) => `token ${i + 1}`);
}

/** Return the positions of the longest run of equal tokens: the placeholders of the image. */
function findPatches(labels) {
  let best = [];
  for (let start = 0; start < labels.length; ) {
    let end = start;
    while (end < labels.length && labels[end] === labels[start]) end++;
    if (end - start > best.length) best = Array.from({ length: end - start }, (_, i) => start + i);
    start = end;
  }
  return best;
}

/** Return rows and columns of patches for an image of this shape; the models keep its proportions, if they can. */
export function guessGrid(count, aspect) {
  const shapes = [];
  for (let rows = 1; rows <= count; rows++) if (count % rows === 0) shapes.push([rows, count / rows]);
  const distance = ([rows, columns]) => Math.abs(Math.log(columns / rows / aspect));
  return shapes.reduce((best, shape) => (distance(shape) < distance(best) ? shape : best));
}
