// A map of texts: their vectors, projected to two dimensions.
import { extremes, project } from "./math.js";
import { html } from "./vendor/preact-htm.js";

const [WIDTH, HEIGHT, MARGIN] = [420, 340, 22];
const MAX_LABEL = 24;
const LINE_HEIGHT = 17;
const CHARACTER_WIDTH = 7.5;
const RADIUS = 10;
const LABEL_GAP = 15;

export function TextMap({ texts, vectors }) {
  const { points, explained } = project(vectors);
  const places = placeLabels(scale(points), texts);
  const share = explained.reduce((sum, value) => sum + value, 0);
  const label = `Map of ${texts.length} texts by their two principal components; the heat map has the same similarities as numbers`;
  return html`<svg class="map" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${label}>
      <line x1=${MARGIN} y1=${HEIGHT / 2} x2=${WIDTH - MARGIN} y2=${HEIGHT / 2} />
      <line x1=${WIDTH / 2} y1=${MARGIN} x2=${WIDTH / 2} y2=${HEIGHT - MARGIN} />
      ${places.map(({ x, y, labelY, isRight }, i) => {
        const labelX = isRight ? x - LABEL_GAP : x + LABEL_GAP;
        return html`<g key=${i}>
          <title>${texts[i]}</title>
          <line class="leader" x1=${x} y1=${y} x2=${labelX} y2=${labelY} />
          <circle cx=${x} cy=${y} r=${RADIUS} />
          <text class="ordinal" x=${x} y=${y + 4}>${i + 1}</text>
          <text x=${labelX} y=${labelY + 5} text-anchor=${isRight ? "end" : "start"}>${crop(texts[i])}</text>
        </g>`;
      })}
    </svg>
    <p class="muted">Two principal components, with ${Math.round(share * 100)} % of the variance.</p>`;
}

const crop = (text) => (text.length > MAX_LABEL ? `${text.slice(0, MAX_LABEL - 1)}…` : text);

function scale(points) {
  const ranges = [0, 1].map((axis) => {
    return extremes(points.map((point) => point[axis]));
  });
  const place = (value, [low, high], size) => MARGIN + ((value - low) / (high - low || 1)) * (size - 2 * MARGIN);
  return points.map(([x, y]) => ({ x: place(x, ranges[0], WIDTH), y: HEIGHT - place(y, ranges[1], HEIGHT) }));
}

/** Put every label beside its point, and move it down or up as far as others are in its way. */
function placeLabels(places, texts) {
  const boxes = places.map(({ x, y }) => ({ left: x - RADIUS, width: 2 * RADIUS, y }));
  return places.map((place, i) => {
    const isRight = place.x > WIDTH * 0.5;
    const width = crop(texts[i]).length * CHARACTER_WIDTH;
    const left = isRight ? place.x - LABEL_GAP - width : place.x + LABEL_GAP;
    const isFree = (y) =>
      y > 8 && y < HEIGHT - 8 &&
      boxes.every((box) => Math.abs(box.y - y) >= LINE_HEIGHT - 1 || box.left > left + width || box.left + box.width < left);
    const shifts = Array.from({ length: 40 }, (_, step) => (step % 2 ? 1 : -1) * Math.ceil(step / 2) * (LINE_HEIGHT / 2));
    const labelY = place.y + (shifts.find((shift) => isFree(place.y + shift)) ?? 0);
    boxes.push({ left, width, y: labelY });
    return { ...place, labelY, isRight };
  });
}
