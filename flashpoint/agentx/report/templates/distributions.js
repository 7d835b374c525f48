// TTFT and ITL of one level: the share of requests that took at most so long.

const MARKS = { P50: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0Z", P90: "M-4.6-4.6H4.6V4.6H-4.6Z", P99: "M0-6L5.8 4.5H-5.8Z" };

function drawDistribution(width, found, title) {
  if (!found) return [html("p", { class: "notice" }, `No request of this level has a ${title}.`)];
  const { values, shares, marked } = found;
  const least = values[0], most = values[values.length - 1];
  // Latencies spread over orders of magnitude; a logarithm needs them all above 0.
  const log = least > 0 && most / least > 5;
  const high = most || 1;
  const linear = ticks(high, width > 500 ? 6 : 4);
  const x = log
    ? { low: least * 0.95, high: high * 1.05, ticks: logTicks(least * 0.95, high * 1.05), log, text: axisTime }
    : { low: 0, high: linear[linear.length - 1], ticks: linear, text: axisTime };
  const y = { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (value) => `${value * 100} %` };
  const chart = frame(width, 230, x, y, `Distribution of ${title}`);
  let path = `M${chart.px(least)} ${chart.py(0)}`;
  values.forEach((value, i) => { path += `H${chart.px(value)}V${chart.py(shares[i])}`; });
  chart.root.append(svg("path", { class: "line s0", d: path }));
  for (const [name, value] of Object.entries(marked)) {
    const at = { x: chart.px(value || x.low), y: chart.py(Number(name.slice(1)) / 100) };
    chart.root.append(
      svg("path", { class: "mark s1", d: MARKS[name], transform: `translate(${at.x} ${at.y})` }),
    );
  }
  const text = (i) => `${percent(shares[i])} of ${found.count} requests: ${title} at most ${duration(values[i])}`;
  followed(chart, values.length, (i) => chart.px(values[i]), text);
  return [chart.root];
}

function axisTime(seconds) {
  if (!seconds) return "0";
  if (seconds < 1e-3) return `${short(seconds * 1e6)} µs`;
  return seconds < 1 ? `${short(seconds * 1e3)} ms` : `${short(seconds)} s`;
}

function showDistributions(level) {
  for (const [name, title] of [["ttft", "TTFT"], ["itl", "ITL"]]) {
    const found = level[name];
    drawn(byId(`${name}-chart`), (width) => drawDistribution(width, found, title));
    byId(`${name}-words`).textContent = found
      ? `${Object.entries(found.marked).map(([p, value]) => `${p} ${duration(value)}`).join(", ")}; ${found.count} requests`
      : "";
  }
}
