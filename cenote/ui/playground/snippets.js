// The requests of a view as code: curl, Python, JavaScript.
import { hasKey, ROOT } from "./api.js";
import { html, useState } from "./vendor/preact-htm.js";

const MAX_DATA_URL = 120;

const LANGUAGES = { curl: writeCurl, Python: writePython, JavaScript: writeJavaScript };

/** Buttons that copy the requests and show what was copied. */
export function CopyAs({ requests }) {
  const [shown, setShown] = useState(null);
  const [status, setStatus] = useState("");
  const code = shown && LANGUAGES[shown](requests.map(shorten));
  const copy = async (language) => {
    setShown(language);
    const text = LANGUAGES[language](requests.map(shorten));
    setStatus((await writeClipboard(text)) ? `Copied as ${language}.` : "Copying is not allowed here; select the text.");
  };
  return html`<div class="copy">
    <div class="row" role="group" aria-label="Copy the request as code">
      <span class="muted">Copy as</span>
      ${Object.keys(LANGUAGES).map(
        (language) => html`<button type="button" class="small" aria-pressed=${String(shown === language)}
          onClick=${() => copy(language)}>${language}</button>`,
      )}
      <span class="muted" role="status">${status}</span>
    </div>
    ${code && html`<pre tabindex="0" aria-label=${`${shown} code`}>${code}</pre>`}
  </div>`;
}

async function writeClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // pages over plain HTTP from another machine may not
  }
}

// images would fill the screen
function shorten(request) {
  const text = JSON.stringify(request.body, (_, value) =>
    typeof value === "string" && value.startsWith("data:") && value.length > MAX_DATA_URL ? `${value.slice(0, 60)}...` : value,
  );
  return { ...request, body: text === undefined ? undefined : JSON.parse(text) };
}

const quoteShell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function writeCurl(requests) {
  return requests
    .map(({ path, body }) => {
      const parts = [`curl ${quoteShell(ROOT + path.slice(1))}`];
      if (hasKey()) parts.push(`-H "Authorization: Bearer $CENOTE_API_KEY"`);
      if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${quoteShell(JSON.stringify(body, null, 1))}`);
      return parts.join(" \\\n  ");
    })
    .join("\n\n");
}

function writePython(requests) {
  const head = hasKey()
    ? `import os\n\nimport requests\n\nheaders = {"Authorization": f"Bearer {os.environ['CENOTE_API_KEY']}"}\n`
    : "import requests\n";
  const options = hasKey() ? "headers=headers" : "";
  const calls = requests.map(({ path, body }) => {
    const lines = [JSON.stringify(ROOT + path.slice(1)), options, body === undefined ? "" : `json=${toPython(body, 1)}`];
    const given = lines.filter(Boolean).map((line) => `    ${line},\n`);
    return `reply = requests.${body === undefined ? "get" : "post"}(\n${given.join("")})\nreply.raise_for_status()\nprint(reply.json())\n`;
  });
  return `${head}\n${calls.join("\n")}`;
}

function toPython(value, depth) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const indent = "    ".repeat(depth + 1);
  const items = Array.isArray(value)
    ? value.map((item) => `${indent}${toPython(item, depth + 1)},\n`)
    : Object.entries(value).map(([name, item]) => `${indent}${JSON.stringify(name)}: ${toPython(item, depth + 1)},\n`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${items.join("")}${"    ".repeat(depth)}${close}`;
}

function writeJavaScript(requests) {
  const calls = requests.map(({ path, body }) => {
    const headers = body === undefined ? [] : [`"Content-Type": "application/json"`];
    if (hasKey()) headers.push("Authorization: `Bearer ${process.env.CENOTE_API_KEY}`");
    const options = [
      ...(body === undefined ? [] : [`  method: "POST",\n`]),
      ...(headers.length ? [`  headers: { ${headers.join(", ")} },\n`] : []),
      ...(body === undefined ? [] : [`  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),\n`]),
    ];
    const url = JSON.stringify(ROOT + path.slice(1));
    return `reply = await fetch(${url}${options.length ? `, {\n${options.join("")}}` : ""});\nconsole.log(await reply.json());\n`;
  });
  return `let reply;\n${calls.join("")}`;
}
