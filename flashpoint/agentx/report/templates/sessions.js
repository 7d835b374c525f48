// A run's requests, unpacked when the run is first looked at (encode.py and swim_lanes.py wrote them).

const OPTIONS_SHOWN = 200;
const unpacked = new Map();

async function unpack(text) {
  const raw = atob(text.trim()), packed = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const padded = (size) => Math.ceil(size / 4) * 4;
  const columns = {};
  let at = padded(4 + length);
  for (const [name, width, count] of header.columns) {
    columns[name] = new { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array }[width](buffer, at, count);
    at += padded(width * count);
  }
  return { ...header, ...columns };
}

/** The requests of run number `run`; the same promise every time. */
function requestsOf(run) {
  if (!unpacked.has(run)) unpacked.set(run, unpack(document.querySelectorAll(".requests")[run].textContent));
  return unpacked.get(run);
}

/** The sessions that were played at a level and have `text` in their id, as positions in the play columns. */
function playsOf(requests, level, text) {
  const wanted = text.toLowerCase(), found = [];
  requests.playLevel.forEach((own, i) => {
    if (own === level && requests.sessions[requests.playSession[i]].toLowerCase().includes(wanted)) found.push(i);
  });
  return found;
}

/** First row of a play and the row after its last one. */
function rowsOf(requests, play) {
  const next = play + 1 < requests.playFirst.length ? requests.playFirst[play + 1] : requests.start.length;
  return [requests.playFirst[play], next];
}

function playName(requests, play) {
  const [from, to] = rowsOf(requests, play), again = requests.playNumber[play];
  const session = requests.sessions[requests.playSession[play]];
  return `${session}${again ? `, play ${again + 1}` : ""}: ${to - from} request${to - from > 1 ? "s" : ""}`;
}

/** Fill the selection of sessions; the longest one comes first. */
function offerSessions(requests, level, text) {
  const size = (play) => rowsOf(requests, play)[1] - rowsOf(requests, play)[0];
  const plays = playsOf(requests, level, text).sort((a, b) => size(b) - size(a) || a - b);
  const select = byId("session"), rest = plays.length - OPTIONS_SHOWN;
  select.replaceChildren(
    ...plays.slice(0, OPTIONS_SHOWN).map((play) => html("option", { value: play }, playName(requests, play))),
  );
  if (rest > 0) select.append(html("option", { disabled: "" }, `${rest} more: type part of an id in Find`));
  if (!plays.length) select.append(html("option", { disabled: "", selected: "" }, "no session with this id"));
  return plays.length ? Number(select.value) : null;
}
