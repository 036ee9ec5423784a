// What the models of the server can do, from their cards in /v1/models.

export const isReady = (model) => model.state === "ready" && model.tasks.length > 0;
export const canEmbed = (model) => model.tasks.includes("embed");
export const canScore = (model) => model.score_types.length > 0;
export const canMatchTokens = (model) =>
  model.tasks.includes("token_embed") && model.score_types.includes("late-interaction");
export const canEmbedSparsely = (model) => model.tasks.includes("sparse_embed");
export const canClassify = (model) => model.tasks.includes("classify") && !model.score_types.includes("cross-encoder");
export const canFindEntities = (model) => model.supports_entities;
export const canCompare = (model) => canEmbed(model) || canScore(model);

/** Return the cards without further names of the same model. */
export function dropAliases(cards) {
  const seen = new Set();
  return cards.filter((card) => {
    const identity = JSON.stringify([card.root, card.fingerprint, card.parent, card.fingerprint ? "" : card.id]);
    if (seen.has(identity)) return false;
    seen.add(identity);
    return true;
  });
}

/** Return every way in which the models score a query and a document. */
export function listScorers(models) {
  return models.flatMap((model) =>
    model.score_types.map((type, index) => ({
      id: `${model.id} ${type}`,
      model: model.id,
      type,
      isDefault: index === 0,
    })),
  );
}

// the tabs, in their order; a tab is shown if one of the models can do it
export const TABS = [
  { id: "embed", title: "Embed", isFor: canEmbed, load: () => import("./tabs/embed.js") },
  { id: "rerank", title: "Rerank", isFor: canScore, load: () => import("./tabs/rerank.js") },
  { id: "late", title: "Late interaction", isFor: canMatchTokens, load: () => import("./tabs/late.js") },
  { id: "sparse", title: "Sparse", isFor: canEmbedSparsely, load: () => import("./tabs/sparse.js") },
  { id: "classify", title: "Classify", isFor: canClassify, load: () => import("./tabs/classify.js") },
  { id: "entities", title: "Entities", isFor: canFindEntities, load: () => import("./tabs/entities.js") },
  { id: "compare", title: "Compare", isFor: canCompare, load: () => import("./tabs/compare.js") },
  { id: "server", title: "Server", isFor: () => true, load: () => import("./tabs/server.js") },
];
