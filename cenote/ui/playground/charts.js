// Line charts with uPlot, which is loaded when the first chart is shown.
import { ROOT } from "./api.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const HEIGHT = 170;
const SHOWN_S = 60; // until there are samples of a longer time
// distinct on light and dark pages
export const COLOURS = ["#1d8fa5", "#d9822b", "#7a6ad8", "#3a9d5d", "#d1495b", "#8a8f2c", "#4a7fd6", "#a8557f"];

let library = null;

function loadLibrary() {
  library ??= new Promise((resolve, reject) => {
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${ROOT}ui/vendor/uplot.css` });
    const script = Object.assign(document.createElement("script"), { src: `${ROOT}ui/vendor/uplot.js`, onload: () => resolve(globalThis.uPlot), onerror: reject });
    document.head.append(link, script);
  });
  return library;
}

/** `times` in seconds; `series`: {label, values}; `describe`: the latest values in words. */
export function Chart({ title, times, series, format, describe }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);
  const data = [times, ...series.map(({ values }) => values)];
  useEffect(() => {
    const redraw = () => setTheme((number) => number + 1);
    addEventListener("cenote-theme", redraw);
    return () => removeEventListener("cenote-theme", redraw);
  }, []);
  useEffect(() => {
    let isGone = false;
    const resize = new ResizeObserver(([entry]) => plot.current?.setSize({ width: entry.contentRect.width, height: HEIGHT }));
    loadLibrary().then((uPlot) => {
      if (isGone || !box.current) return;
      plot.current = new uPlot(makeOptions(box.current, series, format), data, box.current);
      resize.observe(box.current);
    });
    return () => {
      isGone = true;
      resize.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [series.length, theme]);
  useEffect(() => plot.current?.setData(data), [times]);
  return html`<section class="card">
    <h3>${title}</h3>
    <div ref=${box} role="img" aria-label=${`${title}. ${describe}`}></div>
  </section>`;
}

function makeOptions(element, series, format) {
  const style = getComputedStyle(element);
  const [stroke, line] = [style.color, style.getPropertyValue("border-color")];
  const grid = { stroke: `color-mix(in srgb, ${stroke} 15%, transparent)`, width: 1 };
  const axis = { stroke, grid, ticks: { ...grid, stroke: line || grid.stroke }, font: "12px system-ui" };
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { range: (_, first) => [Math.min(first ?? Infinity, Date.now() / 1000 - SHOWN_S), Date.now() / 1000] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [axis, { ...axis, size: 58, values: (_, values) => values.map(format) }],
    series: [{}, ...series.map(({ label }, i) => ({ label, stroke: COLOURS[i % COLOURS.length], width: 2, points: { show: false } }))],
  };
}
