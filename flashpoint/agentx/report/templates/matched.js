// The slider: every run read at the same x, and the ratio of two runs.

const SLIDER_STEPS = 500;

/** The slider goes over every frontier's range and starts in the middle of what all of them share. */
function setMatchedRange(all) {
  const slider = byId("matched-x"), knots = all.map((curve) => curve.knots).filter((each) => each.length);
  slider.disabled = !knots.length;
  chosen.matched = null;
  if (!knots.length) return;
  const low = Math.min(...knots.map((each) => each[0].x));
  const high = Math.max(...knots.map((each) => each[each.length - 1].x));
  const from = Math.max(...knots.map((each) => each[0].x));
  const to = Math.min(...knots.map((each) => each[each.length - 1].x));
  slider.min = low;
  slider.max = high;
  slider.step = (high - low) / SLIDER_STEPS || "any";
  slider.value = from <= to ? (from + to) / 2 : (low + high) / 2;
  chosen.matched = Number(slider.value);
}

function showReadings(all) {
  const axis = charts.axes.x[chosen.x], x = chosen.matched;
  byId("matched-axis").textContent = axis.short;
  byId("reading-title").textContent = charts.axes.y[chosen.y].title;
  byId("matched-value").textContent = number(x);
  byId("matched-x").setAttribute("aria-valuetext", `${number(x)} tokens/s per user, ${axis.short}`);
  const reads = all.map(({ knots }) => (x === null ? { value: null, how: "no point" } : reading(knots, x)));
  byId("readings").tBodies[0].replaceChildren(
    ...all.map(({ run }, i) =>
      html(
        "tr", {},
        html("th", { scope: "row", class: "name" }, run.name),
        html("td", { "data-value": reads[i].value ?? "" }, number(reads[i].value)),
        html("td", { class: "words" }, reads[i].how),
      ),
    ),
  );
  if (byId("ratio")) showRatio(all, reads);
}

function showRatio(all, reads) {
  const of = Number(byId("ratio-of").value), to = Number(byId("ratio-to").value);
  const out = [of, to].filter((i) => !reads[i].inside);
  const output = byId("ratio");
  const value = out.length || !reads[to].value ? null : reads[of].value / reads[to].value;
  output.dataset.value = value ?? "";
  output.textContent =
    value === null
      ? `no ratio: ${[...new Set(out)].map((i) => `${all[i].run.name} ${reads[i].how.split(":")[0]}`).join(", ") || "divided by 0"}`
      : `= ${value.toFixed(2)} ×`;
}

function startMatched(changed) {
  byId("matched-x").addEventListener("input", () => {
    chosen.matched = Number(byId("matched-x").value);
    changed();
  });
  for (const id of ["ratio-of", "ratio-to"]) byId(id)?.addEventListener("change", changed);
}
