// Requests to the server that this page comes from. The API key stays in this tab.

// this file is at ROOT/ui/api.js, whatever prefix a proxy puts before it
export const ROOT = new URL("..", import.meta.url).href;
const KEY_NAME = "cenote-api-key";

let apiKey = sessionStorage.getItem(KEY_NAME) ?? "";

export const hasKey = () => apiKey !== "";

export function setKey(key) {
  apiKey = key.trim();
  if (apiKey) sessionStorage.setItem(KEY_NAME, apiKey);
  else sessionStorage.removeItem(KEY_NAME);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Send a request and return its parsed reply, the milliseconds it took and the tokens it used. */
export async function call(path, body, { signal } = {}) {
  const headers = {};
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const startedAt = performance.now();
  const reply = await fetch(ROOT + path.slice(1), {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    redirect: "error", // a key is for this server only
    signal,
  });
  const text = await reply.text();
  if (!reply.ok) throw new ApiError(reply.status, readMessage(text) || `${reply.status} ${reply.statusText}`);
  return {
    data: isJson(reply) ? JSON.parse(text) : text,
    ms: performance.now() - startedAt,
    tokens: Number(reply.headers.get("x-prompt-tokens") ?? 0),
  };
}

function isJson(reply) {
  return (reply.headers.get("content-type") ?? "").startsWith("application/json");
}

function readMessage(text) {
  try {
    const body = JSON.parse(text);
    return body.error?.message ?? body.message ?? text;
  } catch {
    return text;
  }
}

/** Return an image file as a data: address. */
export function readDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
