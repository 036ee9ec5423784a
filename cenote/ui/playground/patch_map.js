// Similarities of a query and the patches of an image, laid over the image.
import { SelectField } from "./components.js";
import { extremes } from "./math.js";
import { format } from "./state.js";
import { guessGrid } from "./token_rows.js";
import { html, useState } from "./vendor/preact-htm.js";

const MAX_OPACITY = 0.75;

/** `matrix`: for every query token, its similarity with every patch. */
export function PatchMap({ image, labels, matrix }) {
  const [aspect, setAspect] = useState(1);
  const [selected, setSelected] = useState("all");
  const [rows, columns] = guessGrid(matrix[0].length, aspect);
  const values = selected === "all" ? matrix[0].map((_, j) => extremes(matrix.map((row) => row[j]))[1]) : matrix[Number(selected)];
  const [low, high] = extremes(values);
  const share = (value) => (value - low) / (high - low || 1);
  const options = [["all", "all (the best of each patch)"], ...labels.map((label, i) => [String(i), `${i + 1}  ${label}`])];
  const style = { gridTemplate: `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)` };
  const best = matrix.map((row) => row.indexOf(extremes(row)[1]));
  return html`<${SelectField} label="Query token" value=${selected} options=${options} onChange=${setSelected} />
    <div class="patches" role="img" aria-label=${`${rows} by ${columns} patches of ${image.name}; the table below has the best patch of every query token`}>
      <img src=${image.url} alt="" onLoad=${({ target }) => setAspect(target.naturalWidth / target.naturalHeight)} />
      <div class="grid" style=${style}>
        ${values.map((value, j) => html`<span key=${j} style=${{ opacity: (share(value) * MAX_OPACITY).toFixed(3) }}></span>`)}
      </div>
    </div>
    <p class="muted">${values.length} patches, shown as ${rows} rows of ${columns}, by the proportions of the image.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Best patch of every query token"><table class="plain">
      <caption class="hidden">Best patch of every query token</caption>
      <thead><tr><th scope="col">Query token</th><th scope="col">Best patch</th><th scope="col">Similarity</th></tr></thead>
      <tbody>${labels.map(
        (label, i) => html`<tr key=${i}><td>${label}</td>
          <td>row ${Math.floor(best[i] / columns) + 1}, column ${(best[i] % columns) + 1}</td><td>${format(matrix[i][best[i]])}</td></tr>`,
      )}</tbody>
    </table></div>`;
}
