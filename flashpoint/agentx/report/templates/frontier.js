// The frontier of a run, and the reading between its points.

/** The points that no other point beats on both axes, in order of x; x ≤ 0 never counts. */
function frontier(points) {
  const able = points.filter((p) => p.x !== null && p.y !== null && p.x > 0);
  able.sort((a, b) => b.x - a.x || b.y - a.y);
  const kept = [];
  let best = -Infinity;
  for (const point of able) {
    if (point.y > best) kept.push(point);
    best = Math.max(best, point.y);
  }
  return kept.reverse();
}

/**
 * Slopes at the knots that keep a cubic Hermite curve monotone between them: Steffen's (Astronomy and
 * Astrophysics 239, 1990), with one-sided slopes at both ends. Two knots make a line.
 */
function steffenSlopes(knots) {
  const last = knots.length - 1;
  const steps = knots.slice(1).map((knot, i) => knot.x - knots[i].x);
  const secants = knots.slice(1).map((knot, i) => (knot.y - knots[i].y) / steps[i]);
  if (last < 1) return knots.map(() => 0);
  if (last === 1) return [secants[0], secants[0]];
  const slopes = knots.map((_, i) => {
    if (i === 0 || i === last) return 0;
    const [a, b] = [secants[i - 1], secants[i]];
    const parabola = (a * steps[i] + b * steps[i - 1]) / (steps[i - 1] + steps[i]);
    return (Math.sign(a) + Math.sign(b)) * Math.min(Math.abs(a), Math.abs(b), Math.abs(parabola) / 2);
  });
  slopes[0] = (3 * secants[0] - slopes[1]) / 2;
  slopes[last] = (3 * secants[last - 1] - slopes[last - 1]) / 2;
  return slopes;
}

/** What a frontier says at x: { value, how }; value is null where there is none. */
function reading(knots, x) {
  if (!knots.length) return { value: null, how: "no point" };
  const first = knots[0], last = knots[knots.length - 1];
  if (x < first.x) return { value: first.y, how: `clamped low: the frontier begins at ${number(first.x)}` };
  if (x > last.x) return { value: null, how: `unreachable: the frontier ends at ${number(last.x)}` };
  const known = knots.find((knot) => knot.x === x);
  if (known) return { value: known.y, how: `measured at ${known.label}`, inside: true };
  const i = knots.findIndex((knot) => knot.x > x) - 1;
  const [a, b] = [knots[i], knots[i + 1]], slopes = steffenSlopes(knots);
  const h = b.x - a.x, t = (x - a.x) / h;
  const value =
    a.y * (1 + 2 * t) * (1 - t) ** 2 + slopes[i] * h * t * (1 - t) ** 2 +
    b.y * t * t * (3 - 2 * t) + slopes[i + 1] * h * t * t * (t - 1);
  const ys = knots.map((knot) => knot.y);
  return {
    value: Math.min(Math.max(...ys), Math.max(Math.min(...ys), value)),
    how: `between ${a.label} and ${b.label}`,
    inside: true,
  };
}

/** The curve of `reading` as an SVG path; a cubic stays the same cubic under linear axes. */
function frontierPath(knots, px, py) {
  const slopes = steffenSlopes(knots);
  return knots
    .map((knot, i) => {
      if (!i) return `M${px(knot.x)} ${py(knot.y)}`;
      const before = knots[i - 1], third = (knot.x - before.x) / 3;
      return (
        `C${px(before.x + third)} ${py(before.y + slopes[i - 1] * third)} ` +
        `${px(knot.x - third)} ${py(knot.y - slopes[i] * third)} ${px(knot.x)} ${py(knot.y)}`
      );
    })
    .join("");
}
