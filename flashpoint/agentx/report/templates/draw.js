"use strict";
// Drawing: SVG and HTML elements, axes, the box that speaks on hover and focus, charts that follow their width.

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

/** A number with about three digits; a dash where there is none. */
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return size >= 10 ? value.toFixed(1) : size >= 0.01 || size === 0 ? value.toFixed(2) : value.toPrecision(2);
}
const percent = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toFixed(1)} %`);

/** Seconds in the unit that suits them: 850 ms, 12.3 s, 4 min 10 s. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (seconds < 120) return `${Number(seconds.toPrecision(3))} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** A number for an axis: 950, 1.2k, 36k, 1.5M; a dash where there is none. */
function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= unit) return `${Number((value / unit).toPrecision(3))}${letter}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** About `count` round values from 0; the last one is the first not below `top`. */
function ticks(top, count) {
  let step = 10 ** Math.floor(Math.log10(top / count));
  step *= [1, 2, 2.5, 5, 10].find((factor) => factor * step * count >= top) ?? 10;
  const last = Math.ceil(top / step - 1e-9);
  return Array.from({ length: last + 1 }, (_, i) => i * step);
}

/** Powers of ten, with 2 and 5 between them where there are few. */
function logTicks(low, high) {
  const found = [];
  const factors = high / low > 2000 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

/**
 * An empty chart with axes. x and y: { low, high, ticks, text, log }. The root is an SVG of the given width;
 * px and py give the place of a value.
 */
function frame(width, height, x, y, label) {
  const left = 52, right = width - 14, top = 10, bottom = height - 24;
  const place = (axis, from, to) => (value) => {
    const at = axis.log
      ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
      : (value - axis.low) / (axis.high - axis.low);
    return Math.round((from + (to - from) * at) * 10) / 10;
  };
  const px = place(x, left, right), py = place(y, bottom, top);
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of y.ticks) {
    axes.append(
      svg("path", { d: `M${left} ${py(value)}H${right}` }),
      svg("text", { x: left - 7, y: py(value) + 4, "text-anchor": "end" }, y.text(value)),
    );
  }
  let free = -Infinity;
  for (const value of x.ticks) {
    const text = x.text(value), at = px(value), half = 4 * text.length;
    axes.append(svg("path", { d: `M${at} ${top}V${bottom}` }));
    if (at - half < free) continue; // a text that would run into the one before it
    free = at + half + 6;
    axes.append(svg("text", { x: Math.min(at, width - half), y: bottom + 18, "text-anchor": "middle" }, text));
  }
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label }, axes);
  return { root, px, py, left, right, top, bottom, width };
}

const tip = byId("tip");
function showTip(text, box) {
  tip.textContent = text;
  tip.hidden = false;
  const room = document.documentElement.clientWidth;
  const left = Math.min(box.left, room - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : box.bottom + 6) + scrollY}px`;
}
const hideTip = () => { tip.hidden = true; };
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

/** Show `text` while `node` is hovered, focused or tapped; `target` is where the box is put. */
function speaks(node, text, target) {
  node.setAttribute("aria-label", text);
  const show = () => showTip(text, target.getBoundingClientRect());
  for (const name of ["pointerenter", "focus", "click"]) node.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) node.addEventListener(name, hideTip);
}

/**
 * A vertical line that follows the pointer and the arrow keys through `count` places of a chart and says what
 * is there: one stop for the keyboard, however many values there are.
 */
function followed(chart, count, xOf, textOf) {
  const line = svg("path", { class: "cursor", visibility: "hidden" });
  chart.root.append(line);
  chart.root.setAttribute("tabindex", "0");
  chart.root.setAttribute("role", "img");
  const name = chart.root.getAttribute("aria-label");
  let at = 0;
  const show = (i) => {
    at = Math.max(0, Math.min(count - 1, i));
    const x = xOf(at), text = textOf(at);
    line.setAttribute("d", `M${x} ${chart.top}V${chart.bottom}`);
    line.setAttribute("visibility", "visible");
    chart.root.setAttribute("aria-label", `${name}. ${text}`);
    const box = chart.root.getBoundingClientRect(), scale = box.width / chart.width;
    showTip(text, { left: box.left + x * scale + 8, top: box.top + 40, bottom: box.top + 60 });
  };
  const hide = () => { line.setAttribute("visibility", "hidden"); hideTip(); };
  const under = (event) => {
    const box = chart.root.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.width;
    let best = 0;
    for (let i = 1; i < count; i++) if (Math.abs(xOf(i) - x) < Math.abs(xOf(best) - x)) best = i;
    show(best);
  };
  chart.root.addEventListener("pointermove", under);
  chart.root.addEventListener("pointerdown", under);
  chart.root.addEventListener("pointerleave", hide);
  chart.root.addEventListener("focus", () => show(at));
  chart.root.addEventListener("blur", hide);
  chart.root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -count, End: count }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at + step);
  });
}

const PAPER_WIDTH = 700;
const drawings = new Map();

/** Put what draw(width) returns into `box`, and again whenever the box gets another width or goes on paper. */
function drawn(box, draw) {
  const put = (width) => box.replaceChildren(...draw(width));
  if (!drawings.has(box)) {
    new ResizeObserver(() => {
      const known = drawings.get(box);
      if (box.clientWidth && box.clientWidth !== known.width) {
        known.width = box.clientWidth;
        known.put(known.width);
      }
    }).observe(box);
  }
  drawings.set(box, { put, width: box.clientWidth });
  put(box.clientWidth || PAPER_WIDTH);
}
addEventListener("beforeprint", () => { for (const known of drawings.values()) known.put(PAPER_WIDTH); });
addEventListener("afterprint", () => { for (const known of drawings.values()) known.put(known.width || PAPER_WIDTH); });
