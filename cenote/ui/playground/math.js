// Vectors: similarities, projections and rankings.

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const norm = (a) => Math.sqrt(dot(a, a));

export const cosine = (a, b) => dot(a, b) / (norm(a) * norm(b) || 1);

export const similarityMatrix = (rows, columns, compare = cosine) =>
  rows.map((row) => columns.map((column) => compare(row, column)));

/** Return the lowest and the highest value; also of more values than a function can have arguments. */
export const extremes = (values) =>
  values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** For every row its best match in the columns, summed: the score of late interaction. */
export function maxSim(matrix) {
  return matrix.reduce((sum, row) => sum + extremes(row)[1], 0);
}

/** Project vectors to their two principal components, by power iteration on the matrix of dot products. */
export function project(vectors) {
  const size = vectors[0].length;
  const mean = Array.from({ length: size }, (_, i) => vectors.reduce((sum, v) => sum + v[i], 0) / vectors.length);
  const centred = vectors.map((vector) => vector.map((value, i) => value - mean[i]));
  const gram = similarityMatrix(centred, centred, dot);
  const axes = [];
  for (let axis = 0; axis < 2; axis++) axes.push(findComponent(gram, axes));
  const trace = gram.reduce((sum, row, i) => sum + row[i], 0) || 1;
  return {
    points: vectors.map((_, i) => axes.map(({ vector, value }) => vector[i] * Math.sqrt(Math.max(value, 0)))),
    explained: axes.map(({ value }) => Math.max(value, 0) / trace),
  };
}

function findComponent(gram, found) {
  let vector = gram.map((_, i) => Math.cos(1 + i * (found.length + 1))); // any start that no symmetry excludes
  let value = 0;
  for (let step = 0; step < 200; step++) {
    let next = gram.map((row) => dot(row, vector));
    for (const other of found) {
      const share = dot(next, other.vector);
      next = next.map((x, i) => x - share * other.vector[i]);
    }
    value = norm(next);
    if (value < 1e-12) return { vector: gram.map(() => 0), value: 0 };
    vector = next.map((x) => x / value);
  }
  return { vector, value };
}

/** Return the indices of the scores, best first; ties keep their order. */
export const rank = (scores) => scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a] || a - b);

/** Kendall's tau of two lists of scores: 1 if they rank alike, -1 if in opposite order. */
export function kendall(a, b) {
  let sum = 0;
  let pairs = 0;
  for (let i = 0; i < a.length; i++) {
    for (let j = 0; j < i; j++) {
      sum += Math.sign(a[i] - a[j]) * Math.sign(b[i] - b[j]);
      pairs++;
    }
  }
  return pairs ? sum / pairs : 1;
}

const BITS = [7, 6, 5, 4, 3, 2, 1, 0];

/** Return the bits of a vector as 1 and -1; the server packs them into bytes and subtracts 128 from each. */
export const unpackBits = (bytes) => bytes.flatMap((byte) => BITS.map((bit) => (((byte + 128) >> bit) & 1 ? 1 : -1)));

// how the vectors of the tokens become the vector of the text
export const POOLINGS = {
  CLS: (rows) => rows[0],
  LAST: (rows) => rows[rows.length - 1],
  MEAN: (rows) => rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length),
  MAX: (rows) => rows[0].map((_, i) => rows.reduce((best, row) => Math.max(best, row[i]), -Infinity)),
};
