// Runs before the first paint, so that the page does not flash in the other theme.
(() => {
  const stored = localStorage.getItem("cenote-theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
