// Hit shares, uncached prefill and the server's own series of one level, on one time axis.

const DASH_WORDS = { "": "solid", "7 4": "dashed", "2 4": "dotted", "10 3 2 3": "dash-dotted" };
const SHARE_AXIS = { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1], text: (value) => `${value * 100} %` };

/** The charts of a level that have data: title, lines { name, values, colour, dash }, and how a value is written. */
function timeCharts(time) {
  const server = time.server ?? {};
  const line = (name, values, colour, dash = "") => ({ name, values, colour, dash });
  const found = [
    {
      title: "Share of prompt tokens from the cache", text: percent, share: true,
      lines: [line("actual", time.actual, 0), line("theoretical", time.theoretical, 1, "7 4")],
    },
    { title: "Prompt tokens/s of the whole system", text: number, lines: [line("uncached", time.uncached, 2)] },
    { title: "KV cache by the server's own count", text: percent, share: true, lines: [line("in use", server.kv, 3)] },
    {
      title: "Requests at the server", text: number,
      lines: [line("running", server.running, 0), line("waiting", server.waiting, 1, "7 4")],
    },
    ...stepCharts(time.steps, line),
  ].map((chart) => ({ ...chart, lines: chart.lines.filter((each) => each.values) }));
  return found.filter((chart) => chart.lines.length).map((chart) => ({
    ...chart,
    title: `${chart.title}: ${chart.lines.map(({ name, dash }) => `${name} (${DASH_WORDS[dash]} line)`).join(", ")}`,
  }));
}

/** What steps asked of the machine: shares of its limits, or the rates where the machine is not known. */
function stepCharts(steps, line) {
  if (!steps) return [];
  const { lines } = steps;
  if (steps.limits) {
    return [{
      title: "Step share of machine limits", text: percent, share: true,
      lines: [
        line("memory", lines.memory, 0), line("math", lines.math, 1, "7 4"),
        line("link", lines.link, 2, "2 4"), line("host", lines.host, 3, "10 3 2 3"),
      ],
    }];
  }
  return [
    { title: "FLOP/s in steps, of one accelerator", text: short, lines: [line("FLOP/s", lines.flops, 1)] },
    {
      title: "Bytes/s in steps, of one accelerator", text: short,
      lines: [
        line("memory", lines.memory_bytes, 0), line("link", lines.link_bytes, 2, "2 4"),
        line("CPU memory", lines.host_bytes, 3, "10 3 2 3"),
      ],
    },
  ];
}

function drawOverTime(width, time, shown) {
  const { title, lines, text, share } = shown;
  const xs = ticks(time.seconds, width > 600 ? 8 : 4).filter((value) => value <= time.seconds * 1.001);
  const most = Math.max(0, ...lines.flatMap((line) => line.values.filter((value) => value !== null)));
  const ys = ticks(most || 1, 4);
  const chart = frame(
    width, 150,
    { low: 0, high: time.seconds, ticks: xs, text: axisTime },
    share && most <= 1 ? SHARE_AXIS : { low: 0, high: ys[ys.length - 1], ticks: ys, text: share ? percent : short },
    `${title}, over time`,
  );
  if (time.measuredFrom) {
    const end = chart.px(Math.min(time.measuredFrom, time.seconds));
    chart.root.prepend(svg("rect", { class: "band", x: chart.left, y: chart.top, width: end - chart.left, height: chart.bottom - chart.top }));
  }
  const middle = (i) => chart.px(Math.min((i + 0.5) * time.width, time.seconds));
  for (const { values, colour, dash } of lines) {
    let path = "", open = false;
    values.forEach((value, i) => {
      // A slice without a value is a gap; one between two gaps still shows, as a short dash.
      if (value !== null) path += `${open ? "L" : "M"}${middle(i)} ${chart.py(value)}${open ? "" : "h1.5"}`;
      open = value !== null;
    });
    chart.root.append(svg("path", { class: `line s${colour}`, "stroke-dasharray": dash, d: path }));
  }
  const spoken = (i) =>
    [`${duration(i * time.width)} to ${duration(Math.min((i + 1) * time.width, time.seconds))} of the level`]
      .concat(lines.map(({ name, values }) => `${name} ${text(values[i])}`)).join("\n");
  followed(chart, time.count, middle, spoken);
  return [chart.root];
}

function showOverTime(level) {
  const time = level.time, box = byId("time-charts");
  byId("time-words").textContent = timeWords(time);
  const shown = time ? timeCharts(time) : [];
  const plots = shown.map(() => html("div", { class: "plot" }));
  for (const old of box.querySelectorAll(".plot")) drawings.delete(old);
  box.replaceChildren(
    ...shown.map((chart, i) => html("figure", {}, html("p", { class: "axis-title" }, chart.title), plots[i])),
  );
  shown.forEach((chart, i) => drawn(plots[i], (width) => drawOverTime(width, time, chart)));
  showShortfalls(time?.shortfalls);
}

function timeWords(time) {
  if (!time) return "The level has no length.";
  const words = [
    `Slices of ${duration(time.width)} since the level's start; a request counts where its first token came. Successful requests, warm-up included${time.measuredFrom ? " (grey)" : ""}.`,
  ];
  if (!time.actual) words.push("The server reports no cached tokens, so there is no actual share.");
  if (!time.theoretical) words.push("The archive has no theoretical hits.");
  words.push(
    time.server
      ? `Server series: ${time.server.names.join(", ")}.`
      : "The archive has no server series of KV cache, running or waiting requests.",
  );
  return words.join(" ");
}

/** The sessions whose prompts should have been in the cache and were not. */
function showShortfalls(found) {
  const box = byId("shortfalls");
  box.replaceChildren();
  if (!found) return;
  if (!found.length) {
    box.append(html("p", {}, "Every session found at least the cached tokens that theory gives it."));
    return;
  }
  const rows = found.map(({ session, tokens, share }) =>
    html(
      "tr", {}, html("th", { scope: "row", class: "name", title: session }, session),
      html("td", {}, tokens.toLocaleString("en-US")), html("td", {}, percent(share)),
    ),
  );
  const head = ["Sessions that missed most hits", "Tokens computed again", "Of the possible hits"];
  box.append(
    html(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": head[0] },
      html(
        "table", {},
        html("thead", {}, html("tr", {}, ...head.map((text) => html("th", { scope: "col" }, text)))),
        html("tbody", {}, ...rows),
      ),
    ),
  );
}
