// The tokens of texts, with the point at which they were truncated.
import { call } from "./api.js";
import { html } from "./vendor/preact-htm.js";

const MAX_TEXTS = 32;
const MAX_TOKENS = 600; // of one text; more fill the page without use

/** Return the tokens of the first texts; `counts`: token_counts of the reply for each text. */
export function fetchTokens(model, texts, counts, signal) {
  const tokenize = (prompt, add_special_tokens) =>
    call("/tokenize", { model, prompt, return_token_strs: true, add_special_tokens }, { signal });
  return Promise.all(
    texts.slice(0, MAX_TEXTS).map(async (text, i) => {
      const [whole, plain] = await Promise.all([tokenize(text, true), tokenize(text, false)]);
      return { ...splitTokens(whole.data.token_strs, plain.data.token_strs, counts[i]), counts: counts[i] };
    }),
  );
}

/** Divide tokens into special ones before and after the text, and those of the text that were kept and cut. */
export function splitTokens(whole, plain, { used, given }) {
  const numSpecial = whole.length - plain.length;
  let numBefore = 0;
  while (numBefore < numSpecial && whole[numBefore] !== plain[0]) numBefore++;
  const promptLength = given - whole.length; // a prompt before the text counts too
  const numKept = Math.max(0, Math.min(plain.length, used - numSpecial - promptLength));
  return {
    before: whole.slice(0, numBefore),
    kept: plain.slice(0, numKept),
    cut: plain.slice(numKept),
    after: whole.slice(numBefore + plain.length),
    promptLength,
  };
}

export function Tokens({ tokens }) {
  const show = (strings, kind) => strings.map((token, i) => html`<span key=${kind + i} class=${`token ${kind}`}>${token}</span>`);
  return html`<ol>
    ${tokens.map(
      ({ before, kept, cut, after, counts, promptLength }, i) => html`<li key=${i} class="tokens">
        <span class="muted">${counts.used} of ${counts.given} tokens${promptLength > 0 && `, ${promptLength} of the prompt`} </span>
        ${show(before, "special")}${show(kept.slice(0, MAX_TOKENS), "")}
        ${kept.length > MAX_TOKENS && html`<span class="muted">… ${kept.length - MAX_TOKENS} more </span>`}
        ${cut.length > 0 && html`<span class="cutline">✂ truncated here: ${cut.length} tokens left out</span>`}
        ${show(cut.slice(0, MAX_TOKENS), "cut")}${show(after, "special")}
      </li>`,
    )}
  </ol>`;
}
