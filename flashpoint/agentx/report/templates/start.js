// Everything at its start: the curve at once, the level looked at closely right after the page has loaded.

const closely = { run: charts.runs.findIndex((run) => run.levels.length), level: 0 };

async function showSessions() {
  const { run, level } = closely, requests = await requestsOf(run);
  if (run !== closely.run || level !== closely.level) return; // another one was chosen meanwhile
  showLanes(requests, offerSessions(requests, level, byId("find").value));
  performance.mark("first lanes");
}

function showLevel(run, level) {
  if (run !== closely.run || !byId("level").options.length) {
    byId("level").replaceChildren(
      ...charts.runs[run].levels.map((each, i) => html("option", { value: i }, each.name)),
    );
  }
  Object.assign(closely, { run, level });
  byId("run").value = run;
  byId("level").value = level;
  showDistributions(charts.runs[run].levels[level]);
  showOverTime(charts.runs[run].levels[level]);
  showSessions();
}

function startClosely() {
  byId("run").addEventListener("change", () => showLevel(Number(byId("run").value), 0));
  byId("level").addEventListener("change", () => showLevel(closely.run, Number(byId("level").value)));
  byId("find").addEventListener("input", showSessions);
  for (const id of ["session", "zoom"]) {
    byId(id).addEventListener("change", async () =>
      showLanes(await requestsOf(closely.run), byId("session").value === "" ? null : Number(byId("session").value)));
  }
  showLevel(closely.run, 0);
}

startCurve((run, level) => showLevel(run, level));
performance.mark("first chart");
if (closely.run >= 0) addEventListener("load", () => setTimeout(startClosely));
