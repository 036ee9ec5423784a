// Metrics in Prometheus' text format, and the samples per model that the charts show.

const LINE = /^(cenote_\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

const unescape = (text) => text.replace(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));

/** Yield the name, labels and value of Cenote's metrics. */
export function* parse(text) {
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, unescape(value)]));
    yield { name: match[1], labels, value: Number(match[3]) };
  }
}

const TOTALS = {
  cenote_prompt_tokens_total: "tokens",
  cenote_waiting_tokens: "waiting",
  cenote_batch_tokens_sum: "batchTokens",
  cenote_batch_tokens_count: "batches",
  cenote_device_seconds_total: "deviceSeconds",
};

/** Return the sums over all replicas: `models` by name, with their latency buckets. */
export function takeSample(text, at) {
  const models = {};
  for (const { name, labels, value } of parse(text)) {
    if (labels.model_name === undefined) continue;
    const model = (models[labels.model_name] ??= { requests: 0, errors: 0, buckets: new Map(), ...Object.fromEntries(Object.values(TOTALS).map((key) => [key, 0])) });
    if (name in TOTALS) model[TOTALS[name]] += value;
    else if (name === "cenote_requests_total") model[labels.outcome === "answered" ? "requests" : "errors"] += value;
    else if (name === "cenote_request_duration_seconds_bucket") {
      const limit = labels.le === "+Inf" ? Infinity : Number(labels.le);
      model.buckets.set(limit, (model.buckets.get(limit) ?? 0) + value);
    }
  }
  return { at, models };
}

/** Return what a model did between two samples: rates per second, latency in milliseconds, fill of batches. */
export function compareSamples(before, after, name) {
  const [first, last] = [before.models[name], after.models[name]];
  if (!first || !last) return null;
  const seconds = after.at - before.at || 1;
  const rate = (key) => Math.max(0, last[key] - first[key]) / seconds;
  const batches = last.batches - first.batches;
  return {
    tokens: rate("tokens"),
    requests: rate("requests"),
    median: findQuantile(first.buckets, last.buckets, 0.5),
    p95: findQuantile(first.buckets, last.buckets, 0.95),
    waiting: last.waiting,
    busy: 100 * rate("deviceSeconds"),
    errors: rate("errors"),
    fill: batches > 0 ? (last.batchTokens - first.batchTokens) / batches : null,
  };
}

/** Return a quantile of the requests between two samples in milliseconds, interpolated within its bucket. */
export function findQuantile(first, last, quantile) {
  const limits = [...last.keys()].sort((a, b) => a - b);
  const counts = limits.map((limit) => last.get(limit) - (first.get(limit) ?? 0));
  const total = counts[counts.length - 1];
  if (!total) return null;
  const wanted = quantile * total;
  const index = counts.findIndex((count) => count >= wanted);
  const [low, below] = index ? [limits[index - 1], counts[index - 1]] : [0, 0];
  const high = Number.isFinite(limits[index]) ? limits[index] : low;
  return 1000 * (low + ((high - low) * (wanted - below)) / (counts[index] - below || 1));
}
