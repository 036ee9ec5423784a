// Checks of JavaScript clients: registration, reference answers, results as JSON lines; as checks.py.

import { readFileSync } from "node:fs";

const servers = JSON.parse(process.env.CLIENT_SERVERS);
export const KEY = process.env.CLIENT_KEY;
export const { all: ALL, embed: EMBED, rerank: RERANK, classify: CLASSIFY } = servers;
export const [MODEL, RERANKER] = ["mini", "pairs"];
export const TEXTS = ["a cenote is a natural pit", "the price of bread", "how deep is it?"];
export const QUERY = "who live in the old city?";
export const DOCUMENTS = [
  "the dog and the cat",
  "people live in the old city",
  "a red bird",
  "two big fish in the river",
];
const CHECK_TIMEOUT_MS = 90_000;

const checks = [];

/** Register a function that uses a client and throws if its answer is not that of the server. */
export function check(client, packageName, options, run) {
  checks.push({ client, package: packageName, setting: "", client_bug: "", ...options, run });
}

/** Run all checks and print one JSON line for each. */
export async function runChecks() {
  for (const { run, ...row } of checks) {
    const started = performance.now();
    let error = "";
    try {
      await Promise.race([run(), timeout()]);
    } catch (exception) {
      error = `${exception.name}: ${exception.message}`.replace(/\s+/g, " ").slice(0, 600);
    }
    const version = JSON.parse(readFileSync(`node_modules/${row.package}/package.json`)).version;
    const seconds = Math.round((performance.now() - started) / 10) / 100;
    console.log("CHECK " + JSON.stringify({ ...row, package: `${row.package} (js)`, version, error, seconds }));
  }
  process.exit(0); // clients keep connections open
}

function timeout() {
  return new Promise((_, reject) => setTimeout(() => reject(new Error("no answer after 90 s")), CHECK_TIMEOUT_MS).unref());
}

export async function post(server, path, body) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${KEY}` };
  const reply = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!reply.ok) throw new Error(`${path}: ${reply.status} ${await reply.text()}`);
  return reply.json();
}

/** Return the vectors of /v1/embeddings. */
export async function embed(texts = TEXTS, fields = {}) {
  const reply = await post(ALL, "/v1/embeddings", { model: MODEL, input: texts, ...fields });
  return reply.data.map((item) => item.embedding);
}

/** Return the integers of /v2/embed. */
export async function embedAs(dtype) {
  const reply = await post(ALL, "/v2/embed", { model: MODEL, texts: TEXTS, embedding_types: [dtype] });
  return reply.embeddings[dtype];
}

/** Return index and score of /rerank, best first. */
export async function rank() {
  const reply = await post(ALL, "/rerank", { model: RERANKER, query: QUERY, documents: DOCUMENTS });
  return reply.results.map((item) => [item.index, item.relevance_score]);
}

/** Throw if two nested lists of numbers differ in size or by more than the tolerance. */
export function same(actual, expected, tolerance = 1e-4) {
  const left = flatten(actual);
  const right = flatten(expected);
  if (left.length !== right.length) throw new Error(`${left.length} numbers, expected ${right.length}`);
  const worst = Math.max(0, ...left.map((value, index) => Math.abs(value - right[index])));
  if (!(worst <= tolerance)) {
    throw new Error(`values differ by ${worst}: ${left.slice(0, 4)}, expected ${right.slice(0, 4)}`);
  }
}

export function equal(actual, expected) {
  if (actual !== expected) throw new Error(`got ${JSON.stringify(actual)}, expected ${JSON.stringify(expected)}`);
}

function flatten(values) {
  return [values].flat(Infinity).flatMap((value) => (ArrayBuffer.isView(value) ? [...value] : [value]));
}
