// The page: fetches the models and shows a tab for everything that they can do.
import { dropAliases, isReady, TABS } from "./abilities.js";
import { call } from "./api.js";
import { Header } from "./header.js";
import { html, render, useEffect, useState } from "./vendor/preact-htm.js";

const RETRY_MS = 1000;
const REFRESH_MS = 30000;

function App() {
  const [state, setState] = useState("connecting");
  const [models, setModels] = useState(null);
  const [message, setMessage] = useState("");
  const [version, setVersion] = useState(0); // counts the reasons to ask again
  useEffect(() => {
    let timer;
    const refresh = async () => {
      let delay = REFRESH_MS;
      try {
        const cards = dropAliases((await call("/v1/models")).data.data);
        setModels(cards);
        const state = describeState(cards.map((card) => card.state));
        setState(state);
        setMessage("");
        if (state === "loading") delay = RETRY_MS;
      } catch (error) {
        setState(error.status === 401 ? "key needed" : error.status === 503 ? "loading" : "not reachable");
        setMessage(error.status === 401 ? "This server needs an API key: enter one above." : error.message);
        if (error.status === 401) return dispatchEvent(new Event("cenote-unauthorized"));
        delay = RETRY_MS;
      }
      timer = setTimeout(refresh, delay);
    };
    refresh();
    return () => clearTimeout(timer);
  }, [version]);
  const again = () => setVersion((number) => number + 1);
  return html`<${Header} state=${state} onKeyChange=${again} />
    <main>
      ${message && html`<p class="error" role="alert">${message}</p>`}
      ${models ? html`<${Tabs} models=${models} onChange=${again} />` : html`<p class="muted">Waiting for the models…</p>`}
    </main>`;
}

// models that are loaded on demand may be unloaded while the server is ready
function describeState(states) {
  if (states.some((state) => state === "loading" || state === "restarting")) return "loading";
  return states.find((state) => state === "failed" || state === "draining") ?? "ready";
}

function Tabs({ models, onChange }) {
  const ready = models.filter(isReady);
  const shown = TABS.filter((tab) => tab.id === "server" || ready.some(tab.isFor));
  const [wanted, setWanted] = useState(location.hash.slice(1));
  const selected = shown.find((tab) => tab.id === wanted) ?? shown[0];
  useEffect(() => {
    const follow = () => setWanted(location.hash.slice(1));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const select = (tab) => {
    history.replaceState(null, "", `#${tab.id}`);
    setWanted(tab.id);
  };
  const onKeyDown = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const index = shown.indexOf(selected) + steps[event.key];
    const last = shown.length - 1;
    const next = Number.isFinite(index) ? (index + shown.length) % shown.length : index < 0 ? 0 : last;
    select(shown[next]);
    document.getElementById(`tab-${shown[next].id}`).focus();
  };
  return html`<div class="tabs" role="tablist" aria-label="What the models can do" onKeyDown=${onKeyDown}>
      ${shown.map(
        (tab) => html`<button key=${tab.id} id=${`tab-${tab.id}`} type="button" role="tab" aria-controls="panel"
          aria-selected=${String(tab === selected)} tabindex=${tab === selected ? 0 : -1}
          onClick=${() => select(tab)}>${tab.title}</button>`,
      )}
    </div>
    <div id="panel" role="tabpanel" aria-labelledby=${`tab-${selected.id}`} tabindex="-1">
      <${Panel} key=${selected.id} tab=${selected} models=${selected.id === "server" ? models : ready.filter(selected.isFor)}
        onChange=${onChange} />
    </div>`;
}

function Panel({ tab, models, onChange }) {
  const [view, setView] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    tab.load().then(
      (module) => setView(() => module.default),
      (failure) => setError(failure.message),
    );
  }, []);
  if (error) return html`<p class="error" role="alert">${error}</p>`;
  return view ? html`<${view} models=${models} onChange=${onChange} />` : html`<p class="muted">Loading…</p>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
