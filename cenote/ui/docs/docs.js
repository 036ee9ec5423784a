// Shows the OpenAPI document of this server with Swagger UI.

const ROOT = new URL("..", import.meta.url).href;
const KEY_NAME = "cenote-api-key"; // the playground uses the same
const SECURITY_SCHEME = "key";

const form = document.getElementById("key-form");
const message = document.getElementById("message");

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_NAME, document.getElementById("key").value.trim());
  show();
});

async function show() {
  const key = sessionStorage.getItem(KEY_NAME);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const reply = await fetch(`${ROOT}openapi.json`, { headers, cache: "no-store", redirect: "error" });
  if (reply.status === 401) {
    form.hidden = false;
    message.textContent = key ? "This key is not valid here." : "This server needs an API key.";
    return;
  }
  if (!reply.ok) throw new Error(`${reply.status} ${reply.statusText}`);
  const document_ = foldAliases(await reply.json());
  form.hidden = true;
  message.textContent = "";
  const ui = globalThis.SwaggerUIBundle({
    dom_id: "#docs",
    spec: { ...document_, servers: [{ url: ROOT.replace(/\/$/, "") }] },
    docExpansion: "list",
    defaultModelsExpandDepth: -1,
    defaultModelExpandDepth: 2,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    filter: true,
    deepLinking: true,
    validatorUrl: null,
    onComplete: () => key && ui.preauthorizeApiKey(SECURITY_SCHEME, key),
  });
}

/** Leave out operations that are another path of one that stays, which lists them in its description. */
function foldAliases(document_) {
  const aliases = {};
  const paths = {};
  for (const [path, operations] of Object.entries(document_.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const target = operation["x-alias-of"];
      if (target) (aliases[`${method} ${target}`] ??= []).push(path);
      else (paths[path] ??= {})[method] = operation;
    }
  }
  for (const [path, operations] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const others = aliases[`${method} ${path}`];
      if (!others) continue;
      const text = `The same at ${others.map((other) => `\`${other}\``).join(", ")}.`;
      operation.description = [operation.description, text].filter(Boolean).join("\n\n");
    }
  }
  // it has the names of models, and Swagger UI shows Markdown
  const description = document_.info.description.replace(/[\\`*_{}[\]<>()#+\-!|]/g, "\\$&");
  return { ...document_, info: { ...document_.info, description }, paths };
}

try {
  await show();
} catch (error) {
  message.textContent = `The OpenAPI document could not be shown: ${error.message}`;
}
