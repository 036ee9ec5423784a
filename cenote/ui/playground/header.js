// The bar at the top: state of the server, API key, theme, links.
import { hasKey, ROOT, setKey } from "./api.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export function Header({ state, onKeyChange }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const open = () => setOpen(true);
    addEventListener("cenote-unauthorized", open);
    return () => removeEventListener("cenote-unauthorized", open);
  }, []);
  const submit = (key) => {
    setKey(key);
    setOpen(false);
    onKeyChange();
  };
  return html`<header class="top">
    <div class="row wide">
      <h1 class="brand"><img src=${`${ROOT}ui/icon.svg`} alt="" width="26" height="26" /> Cenote</h1>
      <span class=${`pill ${state}`} role="status">${state}</span>
      <span class="spacer"></span>
      <button type="button" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>
        API key${hasKey() ? " ✓" : ""}
      </button>
      <${ThemeButton} />
      <a class="button" href=${`${ROOT}docs`}>Docs</a>
    </div>
    ${isOpen && html`<${KeyForm} onSubmit=${submit} />`}
  </header>`;
}

function KeyForm({ onSubmit }) {
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    onSubmit(field.current.value);
  };
  return html`<form class="row key" onSubmit=${submit} aria-label="API key">
    <label class="field inline"><span>API key</span>
      <input ref=${field} type="password" autocomplete="off" spellcheck="false" />
    </label>
    <button class="primary">Use this key</button>
    ${hasKey() && html`<button type="button" onClick=${() => onSubmit("")}>Forget it</button>`}
    <span class="muted">It is kept in this tab only and sent to this server only.</span>
  </form>`;
}

function ThemeButton() {
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const [dark, setDark] = useState(isDark());
  const toggle = () => {
    const theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("cenote-theme", theme);
    setDark(!dark);
    dispatchEvent(new Event("cenote-theme"));
  };
  const other = dark ? "Light" : "Dark";
  return html`<button type="button" aria-label=${`${other} theme`} onClick=${toggle}>${other}</button>`;
}
