// The curve: every run's points and frontier on the chosen axes.

const charts = JSON.parse(byId("charts").textContent);
const chosen = { x: 0, y: 0, matched: null };

/** The points of each run on the chosen axes, and its frontier. */
function curves() {
  return charts.runs.map((run) => {
    const points = run.points
      .map((point) => ({ ...point, x: point.x[chosen.x], y: point.y[chosen.y] }))
      .filter((point) => point.x !== null && point.y !== null);
    return { run, points, knots: frontier(points) };
  });
}

function drawCurve(width, onChoose) {
  const all = curves(), points = all.flatMap((curve) => curve.points);
  if (!points.length) return [html("p", { class: "notice" }, "No level has both figures.")];
  const height = Math.min(440, Math.max(300, width * 0.5));
  const xs = ticks(Math.max(...points.map((p) => p.x)) * 1.06 || 1, width > 600 ? 8 : 4);
  const ys = ticks(Math.max(...points.map((p) => p.y)) * 1.06 || 1, 6);
  const chart = frame(
    width, height,
    { low: 0, high: xs[xs.length - 1], ticks: xs, text: short },
    { low: 0, high: ys[ys.length - 1], ticks: ys, text: short },
    `${charts.axes.y[chosen.y].title} against ${charts.axes.x[chosen.x].title}`,
  );
  const { px, py } = chart;
  for (const { run, knots } of all) {
    if (!knots.length) continue;
    chart.root.append(
      svg("path", { class: `line frontier s${run.colour}`, "stroke-dasharray": run.dash, d: frontierPath(knots, px, py) }),
    );
  }
  if (chosen.matched !== null) {
    chart.root.append(svg("path", { class: "matched", d: `M${px(chosen.matched)} ${chart.top}V${chart.bottom}` }));
    for (const { run, knots } of all) {
      const read = reading(knots, chosen.matched);
      if (!read.inside) continue;
      chart.root.append(
        svg("circle", { class: `reading s${run.colour}`, cx: px(chosen.matched), cy: py(read.value), r: 8 }),
      );
    }
  }
  const spots = points.map((p) => [px(p.x), py(p.y)]), labels = [];
  all.forEach(({ run, points: own, knots }, series) => {
    for (const point of own) {
      const x = px(point.x), y = py(point.y), beaten = !knots.includes(point);
      const [lx, ly] = placeLabel(x, y, point.label, spots.filter((s) => s[0] !== x || s[1] !== y), labels, chart);
      const hit = svg("circle", { class: "hit", cx: x, cy: y, r: 15 });
      const node = svg(
        "g",
        {
          class: `point s${run.colour}${beaten ? " beaten" : ""}${point.doubts.length ? " hollow" : ""}`,
          tabindex: "0",
          role: "button",
        },
        hit,
        svg("g", { transform: `translate(${x} ${y})` }, svg("path", { class: `mark s${run.colour}`, d: run.shape })),
        svg("text", { x: lx, y: ly }, point.label),
      );
      speaks(node, point.text + (beaten ? "\nbeaten by another point of this run" : ""), hit);
      node.addEventListener("click", () => onChoose(series, point.level));
      node.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onChoose(series, point.level);
      });
      chart.root.append(node);
    }
  });
  return [chart.root];
}

/** Where a label covers no other label and is near no other point; the first place where there is none such. */
function placeLabel(x, y, label, others, labels, chart) {
  const width = 8 * label.length;
  const places = [[x + 9, y - 9], [x + 10, y + 4], [x + 9, y + 18]];
  places.push([x - 9 - width, y - 9], [x - 10 - width, y + 4], [x - 9 - width, y + 18]);
  const box = ([left, base]) => ({ left, top: base - 11, right: left + width, bottom: base + 3 });
  const free = (place) => {
    const b = box(place);
    if (b.left < chart.left || b.right > chart.width - 2 || b.bottom > chart.bottom || b.top < 0) return false;
    const near = others.some(
      ([ox, oy]) => b.left - 12 < ox && ox < b.right + 12 && b.top - 5 < oy && oy < b.bottom + 5,
    );
    return !near && !labels.some((o) => b.left < o.right && o.left < b.right && b.top < o.bottom && o.top < b.bottom);
  };
  const place = places.find(free) ?? places[0];
  labels.push(box(place));
  return place;
}

/** Set the curve up; onChoose(run, level) is called when a point is chosen. */
function startCurve(onChoose) {
  if (!byId("curve-chart")) return;
  const draw = () => drawn(byId("curve-chart"), (width) => drawCurve(width, onChoose));
  const axesChanged = () => {
    chosen.x = Number(byId("x-axis").value);
    chosen.y = Number(byId("y-axis").value);
    byId("x-title").textContent = charts.axes.x[chosen.x].title;
    byId("y-title").textContent = charts.axes.y[chosen.y].title;
    setMatchedRange(curves());
    showReadings(curves());
    draw();
  };
  byId("x-axis").addEventListener("change", axesChanged);
  byId("y-axis").addEventListener("change", axesChanged);
  startMatched(() => { showReadings(curves()); draw(); });
  axesChanged();
}
