// Swim lanes: one row per conversation of a session, a bar in three parts per request.

const ROW = 24, HEAD = 26, LEAST_BAR = 1.5;
const STATUS = ["ok", "failed", "beyond the context window", "cut at the end"];

/** The requests of a play as objects; times in seconds since the start of the run, null where unknown. */
function requestsOfPlay(requests, play) {
  const [from, to] = rowsOf(requests, play), found = [];
  const known = (column, i) => (requests[column][i] === requests.missing ? null : requests[column][i]);
  const seconds = (column, i) => {
    const value = known(column, i);
    return value === null ? null : value / requests.ticksPerSecond;
  };
  for (let i = from; i < to; i++) {
    const start = seconds("start", i), code = requests.status[i];
    found.push({
      stream: requests.stream[i], depth: requests.depth[i], turn: requests.turn[i],
      start, wait: seconds("wait", i) ?? 0, ttft: seconds("ttft", i), last: seconds("last", i), span: seconds("span", i),
      prompt: known("prompt", i), cached: known("cached", i), output: known("output", i),
      status: code & 3, warmUp: Boolean(code & 4),
    });
  }
  return found;
}

function requestText(request, stream, origin) {
  const count = (value) => (value === null ? "–" : value.toLocaleString("en-US"));
  return [
    `${stream}, turn ${request.turn}${request.warmUp ? " (warm-up)" : ""}: ${STATUS[request.status]}`,
    `prompt ${count(request.prompt)} tokens, ${count(request.cached)} cached; output ${count(request.output)}`,
    `TTFT ${duration(request.ttft)}, whole ${duration(request.span)}, waited ${duration(request.wait)}`,
    `sent ${duration(request.start - origin)} after the session's begin`,
  ].join("\n");
}

/** Wait, prefill, decode, or a broken bar where the request did not end well. */
function bars(request, px, y) {
  const bar = (kind, from, to) => {
    const x = px(from), width = Math.max(LEAST_BAR, px(to) - x);
    return svg("rect", { class: kind, x, y, width, height: ROW - 8 });
  };
  const parts = request.wait > 0 ? [bar("wait", request.start - request.wait, request.start)] : [];
  const first = request.ttft ?? request.span;
  parts.push(bar("prefill", request.start, request.start + first));
  if (request.ttft !== null && request.last !== null && request.last > request.ttft) {
    parts.push(bar("decode", request.start + request.ttft, request.start + request.last));
  }
  if (request.status) {
    const x = px(request.start), end = Math.max(x + 8, px(request.start + request.span)), middle = y + ROW / 2 - 4;
    parts.push(
      svg("rect", { class: "broken", x, y, width: end - x, height: ROW - 8 }),
      svg("path", { class: "cross", d: `M${end - 8} ${middle - 4}l8 8m0-8l-8 8` }),
    );
  }
  return parts;
}

function drawLanes(width, requests, play, zoom) {
  const own = requestsOfPlay(requests, play);
  const streams = [...new Set(own.map((request) => request.stream))]; // in order of their first request
  const origin = Math.min(...own.map((request) => request.start - request.wait));
  const seconds = Math.max(...own.map((request) => request.start + request.span)) - origin || 1e-3;
  const names = html("div", { class: "lane-names", "aria-hidden": "true" });
  const session = requests.sessions[requests.playSession[play]];
  const nameOf = (stream) => requests.streams[stream] || session;
  for (const stream of streams) {
    const deep = own.find((request) => request.stream === stream).depth;
    names.append(html("div", { title: nameOf(stream) }, "\u200e" + (deep ? "↳ " : "") + nameOf(stream)));
  }
  const names_width = Math.min(230, Math.max(90, width * 0.24));
  const wide = Math.max(120, width - names_width - 4) * zoom, tall = HEAD + ROW * streams.length + 6;
  const px = (time) => Math.round((6 + ((time - origin) / seconds) * (wide - 14)) * 100) / 100;
  const root = svg("svg", {
    width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, role: "group",
    "aria-label": `${own.length} requests of ${session}`,
  });
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of ticks(seconds, Math.max(2, Math.round(wide / 110))).filter((t) => t <= seconds)) {
    const x = px(origin + value);
    axes.append(
      svg("path", { d: `M${x} ${HEAD - 6}V${tall}` }),
      svg("text", { x: Math.max(x, 8), y: 14, "text-anchor": value ? "middle" : "start" }, axisTime(value)),
    );
  }
  root.append(axes);
  const row = new Map(streams.map((stream, i) => [stream, i]));
  const nodes = own.map((request, i) => {
    const y = HEAD + ROW * row.get(request.stream) + 4;
    const x = px(request.start - request.wait), end = px(request.start + request.span);
    const hit = svg("rect", { class: "hit", x: x - 1, y: y - 2, width: Math.max(6, end - x + 2), height: ROW - 4 });
    const node = svg(
      "g", { class: `request${request.warmUp ? " warm-up" : ""}`, tabindex: i ? "-1" : "0", role: "img" },
      ...bars(request, px, y), hit,
    );
    speaks(node, requestText(request, nameOf(request.stream), origin), hit);
    root.append(node);
    return node;
  });
  root.addEventListener("keydown", (event) => moveFocus(event, nodes, own, row));
  return [names, root];
}

/** Left and right go through a row, up and down to the request of the next row that is nearest in time. */
function moveFocus(event, nodes, own, row) {
  const at = nodes.indexOf(document.activeElement);
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key], across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (at < 0 || (!sideways && !across)) return;
  event.preventDefault();
  const here = own[at], line = row.get(here.stream) + (across ?? 0);
  const choices = own.map((_, i) => i).filter((i) => row.get(own[i].stream) === line);
  const far = (i) => Math.abs(own[i].start - here.start);
  const next = across
    ? choices.reduce((best, i) => (best === undefined || far(i) < far(best) ? i : best), undefined)
    : choices[choices.indexOf(at) + sideways];
  if (next === undefined) return;
  nodes[at].setAttribute("tabindex", "-1");
  nodes[next].setAttribute("tabindex", "0");
  nodes[next].focus();
}

function showLanes(requests, play) {
  const words = byId("session-words");
  if (play === null) {
    words.textContent = "No session to show.";
    drawn(byId("lanes"), () => []);
    return;
  }
  const [from, to] = rowsOf(requests, play), streams = new Set(requests.stream.subarray(from, to));
  words.textContent = `${playName(requests, play)} in ${streams.size} conversation${streams.size > 1 ? "s" : ""}.`;
  drawn(byId("lanes"), (width) => drawLanes(width, requests, play, width === PAPER_WIDTH ? 1 : Number(byId("zoom").value)));
}
