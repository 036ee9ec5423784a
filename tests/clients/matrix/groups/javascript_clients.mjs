// Clients in JavaScript.

import { createCohere } from "@ai-sdk/cohere";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { GoogleGenAI } from "@google/genai";
import { InferenceClient } from "@huggingface/inference";
import { CohereEmbeddings, CohereRerank } from "@langchain/cohere";
import { Document } from "@langchain/core/documents";
import { OllamaEmbeddings } from "@langchain/ollama";
import { OpenAIEmbeddings } from "@langchain/openai";
import { embed as embedValue, embedMany, rerank } from "ai";
import { CohereClient, CohereClientV2 } from "cohere-ai";
import { Ollama } from "ollama";
import OpenAI, { AzureOpenAI } from "openai";
import { VoyageAIClient } from "voyageai";

import {
  ALL, CLASSIFY, DOCUMENTS, EMBED, KEY, MODEL, QUERY, RERANKER, TEXTS,
  check, embed, embedAs, equal, post, rank, runChecks, same,
} from "./checks.mjs";

const headers = { Authorization: `Bearer ${KEY}` };

check("openai (js): embeddings, 100 at once", "openai", {}, async () => {
  const client = new OpenAI({ baseURL: `${ALL}/v1`, apiKey: KEY });
  const create = async (options) => (await client.embeddings.create({ model: MODEL, input: TEXTS, ...options })).data;
  same((await create({})).map((item) => item.embedding), await embed());
  same((await create({ encoding_format: "float" })).map((item) => item.embedding), await embed());
  same((await create({ dimensions: 64 })).map((item) => item.embedding), await embed(TEXTS, { dimensions: 64 }));
  const replies = await Promise.all(Array.from({ length: 100 }, () => create({})));
  for (const data of replies) same(data.map((item) => item.embedding), await embed());
});

check("AzureOpenAI (js)", "openai", {}, async () => {
  const client = new AzureOpenAI({ endpoint: ALL, apiKey: KEY, apiVersion: "2024-10-21" });
  const reply = await client.embeddings.create({ model: MODEL, input: TEXTS });
  same(reply.data.map((item) => item.embedding), await embed());
});

check("cohere-ai (js): CohereClientV2 embed, rerank", "cohere-ai", {}, async () => {
  const client = new CohereClientV2({ environment: ALL, token: KEY });
  const reply = await client.embed({
    model: MODEL, texts: TEXTS, inputType: "search_document", embeddingTypes: ["float", "int8", "ubinary"],
  });
  same(reply.embeddings.float, await embed());
  same(reply.embeddings.int8, await embedAs("int8"), 0);
  same(reply.embeddings.ubinary, await embedAs("ubinary"), 0);
  const ranked = await client.rerank({ model: RERANKER, query: QUERY, documents: DOCUMENTS });
  same(ranked.results.map((item) => [item.index, item.relevanceScore]), await rank());
});

check("cohere-ai (js): CohereClient (v1) embed, rerank", "cohere-ai", {}, async () => {
  const client = new CohereClient({ environment: ALL, token: KEY });
  const reply = await client.embed({ model: MODEL, texts: TEXTS, inputType: "search_document" });
  same(reply.embeddings, await embed());
  const ranked = await client.rerank({ model: RERANKER, query: QUERY, documents: DOCUMENTS });
  same(ranked.results.map((item) => [item.index, item.relevanceScore]), await rank());
});

check("ollama (js): embed, embeddings, list, show, ps, pull", "ollama", {}, async () => {
  const client = new Ollama({ host: ALL, headers });
  same((await client.embed({ model: MODEL, input: TEXTS })).embeddings, await embed());
  const raw = await embed(TEXTS.slice(0, 1), { normalize: false }); // the older route does not normalise
  same((await client.embeddings({ model: MODEL, prompt: TEXTS[0] })).embedding, raw);
  const names = (await client.list()).models.map((model) => model.name.replace(/:latest$/, ""));
  equal(names.includes(MODEL), true);
  equal((await client.ps()).models.length > 0, true);
  await client.show({ model: MODEL });
  equal((await client.pull({ model: MODEL })).status, "success");
});

check("@google/genai: embedContent, countTokens", "@google/genai", {}, async () => {
  const client = new GoogleGenAI({ apiKey: KEY, httpOptions: { baseUrl: ALL } });
  const config = { taskType: "RETRIEVAL_DOCUMENT" };
  const reply = await client.models.embedContent({ model: MODEL, contents: TEXTS, config });
  same(reply.embeddings.map((item) => item.values), await embed());
  const small = await client.models.embedContent({
    model: MODEL, contents: TEXTS[0], config: { outputDimensionality: 64 },
  });
  same(small.embeddings.map((item) => item.values), await embed(TEXTS.slice(0, 1), { dimensions: 64 }));
  const { count } = await post(ALL, "/tokenize", { model: MODEL, prompt: TEXTS[0] });
  equal((await client.models.countTokens({ model: MODEL, contents: TEXTS[0] })).totalTokens, count);
});

check("voyageai (js): embed, int8, output dimension", "voyageai", {}, async () => {
  const client = new VoyageAIClient({ environment: `${ALL}/v1`, apiKey: KEY });
  const create = async (options) => (await client.embed({ model: MODEL, input: TEXTS, ...options })).data;
  same((await create({})).map((item) => item.embedding), await embed());
  const small = await create({ outputDimension: 64 });
  same(small.map((item) => item.embedding), await embed(TEXTS, { dimensions: 64 }));
  for (const outputDtype of ["int8", "uint8", "binary", "ubinary"]) {
    same((await create({ outputDtype })).map((item) => item.embedding), await embedAs(outputDtype), 0);
  }
});

check("voyageai (js): rerank", "voyageai", {}, async () => {
  const client = new VoyageAIClient({ environment: `${ALL}/v1`, apiKey: KEY });
  const reply = await client.rerank({ model: RERANKER, query: QUERY, documents: DOCUMENTS });
  same(reply.data.map((item) => [item.index, item.relevanceScore]), await rank());
});

check("@huggingface/inference endpoint(): featureExtraction, sentenceSimilarity", "@huggingface/inference", {}, async () => {
  const client = new InferenceClient().endpoint(EMBED);
  same(await client.featureExtraction({ inputs: TEXTS }), await embed());
  same(await client.featureExtraction({ inputs: TEXTS[0] }), (await embed())[0]);
  const [first, ...others] = await embed();
  const inputs = { source_sentence: TEXTS[0], sentences: TEXTS.slice(1) };
  const products = others.map((other) => other.reduce((sum, value, index) => sum + value * first[index], 0));
  same(await client.sentenceSimilarity({ inputs }), products);
});

check("@huggingface/inference endpoint(): textClassification", "@huggingface/inference", {}, async () => {
  const client = new InferenceClient().endpoint(CLASSIFY);
  const reply = await post(CLASSIFY, "/classify", { input: TEXTS[0] });
  const [good, bad] = reply.data[0].probs;
  const scores = Object.fromEntries((await client.textClassification({ inputs: TEXTS[0] })).map((item) => [item.label, item.score]));
  same([scores.good, scores.bad], [good, bad]);
});

check("ai with @ai-sdk/openai-compatible: embed, embedMany of 2500", "@ai-sdk/openai-compatible", {}, async () => {
  const provider = createOpenAICompatible({ name: "cenote", baseURL: `${ALL}/v1`, apiKey: KEY });
  const model = provider.textEmbeddingModel?.(MODEL) ?? provider.embeddingModel(MODEL);
  same((await embedValue({ model, value: TEXTS[0] })).embedding, (await embed())[0]);
  const values = Array.from({ length: 2500 }, (_, index) => TEXTS[index % 3]);
  const { embeddings } = await embedMany({ model, values });
  equal(embeddings.length, 2500);
  same(embeddings.slice(2049, 2052), await embed());
});

check("ai with @ai-sdk/cohere: embedMany, rerank", "@ai-sdk/cohere", {}, async () => {
  const provider = createCohere({ baseURL: `${ALL}/v2`, apiKey: KEY });
  const model = provider.textEmbeddingModel?.(MODEL) ?? provider.embeddingModel(MODEL);
  same((await embedMany({ model, values: TEXTS })).embeddings, await embed());
  const { ranking } = await rerank({ model: provider.reranking(RERANKER), query: QUERY, documents: DOCUMENTS });
  same(ranking.map((item) => [item.originalIndex, item.score]), await rank());
});

check("@langchain/openai: OpenAIEmbeddings", "@langchain/openai", {}, async () => {
  const client = new OpenAIEmbeddings({ model: MODEL, apiKey: KEY, configuration: { baseURL: `${ALL}/v1` } });
  same(await client.embedDocuments(TEXTS), await embed());
  same(await client.embedQuery(TEXTS[0]), (await embed())[0]);
});

check("@langchain/cohere: CohereEmbeddings, CohereRerank", "@langchain/cohere", {}, async () => {
  const client = new CohereClient({ environment: ALL, token: KEY });
  const embeddings = new CohereEmbeddings({ model: MODEL, client });
  same(await embeddings.embedDocuments(TEXTS), await embed());
  same(await embeddings.embedQuery(TEXTS[0]), (await embed())[0]);
  const ranker = new CohereRerank({ model: RERANKER, client, topN: 4 });
  const pages = DOCUMENTS.map((pageContent, index) => new Document({ pageContent, metadata: { index } }));
  const ranked = await ranker.compressDocuments(pages, QUERY);
  same(ranked.map((page) => [page.metadata.index, page.metadata.relevanceScore]), await rank());
});

check("@langchain/ollama: OllamaEmbeddings", "@langchain/ollama", {}, async () => {
  const client = new OllamaEmbeddings({ model: MODEL, baseUrl: ALL, headers });
  same(await client.embedDocuments(TEXTS), await embed());
  same(await client.embedQuery(TEXTS[0]), (await embed())[0]);
});

await runChecks();
