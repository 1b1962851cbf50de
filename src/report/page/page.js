"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows.map((row, index) => ({...row, index}));
const $ = (id) => document.getElementById(id);

// Elements are made, never parsed: names come from files.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const digits = (value, count = 4) =>
  value === 0 ? "0" : Number(value.toPrecision(count)).toLocaleString("en", {maximumSignificantDigits: count, useGrouping: false});
const time = (us) => us >= 1e6 ? digits(us / 1e6) + " s" : us >= 1e3 ? digits(us / 1e3) + " ms" : digits(us) + " us";
function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; value >= 1000 && unit + 1 < units.length; ++unit) value /= 1000;
  return digits(value, 3) + " " + units[unit];
}
const layerName = (layer) => layer < 0 ? "the iteration's end" : data.layers[layer] ?? "layer " + layer;
// From what changes training least to what changes it most.
const GRAVITY = ["exact", "corrected", "local", "compressed", "delayed"];
const byTime = (a, b) => a.iteration_us - b.iteration_us || GRAVITY.indexOf(a.effect) - GRAVITY.indexOf(b.effect);
const effectOf = (row) => row.effect || "measured";

// A note beside the pointer.
function tell(event, text) {
  const tip = $("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(4, Math.min(event.pageX + 14, room)) + "px";
  tip.style.top = event.pageY + 16 + "px";
}
function note(element, text) {
  element.addEventListener("pointermove", (event) => tell(event, text));
  element.addEventListener("pointerdown", (event) => tell(event, text));
  element.addEventListener("pointerleave", () => tell());
}

// ---- Timelines.

const [KIND, TRACK, LANE, ITERATION, LAYER, OP, OP_LINK, BEGIN, LENGTH, BYTES, LABEL, REASON] = Array(12).keys();
const WAIT = 3, COMMUNICATION = 4;
const LOOKS = [
  ["forward", "#8ec1ee"], ["backward", "#f7b679"], ["optimizer", "#b9aee6"], ["wait", "#e5484d"],
  ["all_reduce", "#93d29b"], ["reduce_scatter", "#7fd3cf"], ["all_gather", "#cfdd7a"], ["average", "#eba3cf"],
  ["compressed", "#d3b48c"]];
// What a span looks like: an op's label begins with what it is.
function lookOf(timeline, span) {
  if (span[KIND] < COMMUNICATION) return span[KIND];
  const name = timeline.texts[span[LABEL]].split(" ", 1)[0];
  return Math.max(COMMUNICATION, LOOKS.findIndex(([known]) => known === name));
}

const withTimeline = rows.filter((row) => row.timeline && row.timeline.spans.length);
const shown = new Set();
{
  const fastest = (admissible) => withTimeline.filter((row) => row.effect && admissible(row)).sort(byTime)[0];
  for (const row of [withTimeline.find((row) => row.name === data.baseline), fastest((row) => row.effect === "exact"),
                     fastest(() => true), ...withTimeline.filter((row) => row.given).slice(0, 8)])
    if (row) shown.add(row);
}
const inOrder = () => [...shown].sort((a, b) => a.index - b.index);
for (const row of withTimeline) {
  const timeline = row.timeline;
  timeline.end = Math.max(...timeline.spans.map((span) => span[BEGIN] + span[LENGTH]));
  timeline.begins = new Map();
  for (const span of timeline.spans)
    if (span[TRACK] === 0 && !(timeline.begins.get(span[ITERATION]) <= span[BEGIN])) timeline.begins.set(span[ITERATION], span[BEGIN]);
}
const view = {begin: 0, end: 1};
function whole() {
  view.begin = 0;
  view.end = Math.max(1, ...[...shown].map((row) => row.timeline.end));
}
function zoom(factor, at = (view.begin + view.end) / 2) {
  const most = Math.max(1, ...[...shown].map((row) => row.timeline.end));
  const length = Math.min(most, Math.max(10, (view.end - view.begin) * factor));
  const share = (at - view.begin) / (view.end - view.begin);
  move(at - share * length, length, most);
}
function move(begin, length = view.end - view.begin, most = Math.max(1, ...[...shown].map((row) => row.timeline.end))) {
  view.begin = Math.max(0, Math.min(begin, most - length));
  view.end = view.begin + length;
  drawLines();
}

const LEFT = 74, AXIS = 18;
function placesOf(timeline) {
  const lanes = timeline.lanes.reduce((sum, count) => sum + count, 0);
  const height = Math.max(3, Math.min(22, 240 / lanes)), gap = height > 8 ? 3 : 1;
  const tops = [];
  let top = AXIS;
  for (const count of timeline.lanes) {
    tops.push(top);
    top += count * (height + gap) + 3;
  }
  return {height, gap, tops, bottom: top};
}
function ticks(begin, end, most) {
  const raw = (end - begin) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  const list = [];
  for (let tick = Math.ceil(begin / step) * step; tick <= end; tick += step) list.push(tick);
  return list;
}
function hatch(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.fillStyle = "#fbd5d6";
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = LOOKS[WAIT][1];
  pen.lineWidth = 2;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) pen.moveTo(shift, 6), pen.lineTo(shift + 6, 0);
  pen.stroke();
  return context.createPattern(tile, "repeat");
}
function fitted(pen, text, width) {
  if (width < 14) return "";
  if (pen.measureText(text).width <= width) return text;
  const tail = text.slice(text.indexOf(" ") + 1);
  return pen.measureText(tail).width <= width ? tail : "";
}
function drawLine(row) {
  const {timeline, canvas} = row;
  const places = placesOf(timeline), width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  canvas.style.height = places.bottom + "px";
  canvas.width = width * ratio;
  canvas.height = places.bottom * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const scale = (width - LEFT) / (view.end - view.begin);
  const x = (at) => LEFT + (at - view.begin) * scale;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  pen.fillStyle = colour("dim");
  for (const tick of ticks(view.begin, view.end, Math.max(2, width / 110))) {
    pen.fillStyle = colour("line");
    pen.fillRect(x(tick), AXIS - 4, 1, places.bottom);
    pen.fillStyle = colour("dim");
    pen.textAlign = x(tick) > width - 30 ? "right" : "left";
    pen.fillText(time(tick / 1000), x(tick), 7);
  }
  pen.textAlign = "left";
  pen.fillStyle = colour("ink");
  timeline.lanes.forEach((count, track) =>
    pen.fillText(track === 0 ? "compute" : timeline.links[track - 1].slice(0, 11), 0,
                 places.tops[track] + Math.max(6, Math.min(count * (places.height + places.gap), 22) / 2)));
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width, places.bottom);
  pen.clip();
  const waiting = hatch(pen), last = new Map();
  for (const span of timeline.spans) {
    const end = span[BEGIN] + span[LENGTH];
    if (end < view.begin || span[BEGIN] > view.end) continue;
    const left = x(span[BEGIN]), right = x(end);
    const y = places.tops[span[TRACK]] + span[LANE] * (places.height + places.gap);
    // What is narrower than half a pixel and hidden by its neighbour.
    if (right - left < 0.5 && right - (last.get(y) ?? -1) < 0.5) continue;
    last.set(y, right);
    const look = lookOf(timeline, span), wide = Math.max(right - left, 0.5);
    pen.fillStyle = look === WAIT ? waiting : LOOKS[look][1];
    pen.fillRect(left, y, wide, places.height);
    if (span[ITERATION] & 1 && look !== WAIT) {
      pen.fillStyle = "rgba(0, 0, 0, 0.14)";
      pen.fillRect(left, y, wide, places.height);
    }
    if (wide > 3) {
      pen.strokeStyle = "rgba(0, 0, 0, 0.45)";
      pen.lineWidth = 0.6;
      pen.strokeRect(left, y, wide, places.height);
    }
    if (places.height < 11 || look === WAIT) continue;
    const from = Math.max(left, LEFT), text = fitted(pen, timeline.texts[span[LABEL]], Math.min(right, width) - from - 6);
    pen.fillStyle = "#14171b";
    pen.fillText(text, from + 3, y + places.height / 2);
  }
  pen.strokeStyle = colour("ink");
  pen.setLineDash([3, 3]);
  for (const begin of timeline.begins.values()) {
    pen.beginPath();
    pen.moveTo(x(begin), AXIS - 3);
    pen.lineTo(x(begin), places.bottom);
    pen.stroke();
  }
  pen.setLineDash([]);
  if (row.marked) {
    const span = row.marked, y = places.tops[span[TRACK]] + span[LANE] * (places.height + places.gap);
    pen.lineWidth = 2.5;
    pen.strokeRect(x(span[BEGIN]), y, Math.max(span[LENGTH] * scale, 2), places.height);
  }
  pen.restore();
}
function drawLines() { for (const row of shown) drawLine(row); }

function spanAt(row, event) {
  const {timeline, canvas} = row, box = canvas.getBoundingClientRect(), places = placesOf(timeline);
  const scale = (box.width - LEFT) / (view.end - view.begin), slack = 2 / scale;
  const at = view.begin + (event.clientX - box.left - LEFT) / scale, y = event.clientY - box.top;
  let found;
  for (const span of timeline.spans) {
    const top = places.tops[span[TRACK]] + span[LANE] * (places.height + places.gap);
    if (y < top || y > top + places.height || at < span[BEGIN] - slack || at > span[BEGIN] + span[LENGTH] + slack) continue;
    if (!found || (at >= span[BEGIN] && at < span[BEGIN] + span[LENGTH])) found = span;
  }
  return found;
}
// The op that a wait was for: the last of that number on that link that had begun.
function opOf(timeline, wait) {
  if (wait[OP] < 0) return undefined;
  return timeline.spans.filter((span) => span[KIND] === COMMUNICATION && span[OP] === wait[OP] && span[TRACK] === wait[OP_LINK] + 1 &&
                               span[BEGIN] < wait[BEGIN] + wait[LENGTH]).pop();
}
function textOf(row, span) {
  const {timeline} = row, parts = [];
  const label = timeline.texts[span[LABEL]], reason = timeline.texts[span[REASON]];
  if (span[KIND] === WAIT) parts.push("wait before " + layerName(span[LAYER]), label);
  else parts.push(span[KIND] < 2 ? LOOKS[span[KIND]][0] + " " + label : label);
  parts.push("iteration " + span[ITERATION] + ", " + time(span[LENGTH] / 1000) + " from " + time(span[BEGIN] / 1000));
  if (span[BYTES]) parts.push(bytes(span[BYTES]));
  if (reason) parts.push(reason);
  return parts.filter(Boolean).join("\n");
}
function listen(row) {
  const {canvas} = row, fingers = new Map();
  const perPixel = () => (view.end - view.begin) / (canvas.clientWidth - LEFT);
  const timeAt = (clientX) => view.begin + (clientX - canvas.getBoundingClientRect().left - LEFT) * perPixel();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
  });
  const lift = (event) => fingers.delete(event.pointerId);
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before !== undefined && fingers.size === 1) {
      move(view.begin - (event.clientX - before) * perPixel());
    } else if (before !== undefined) {
      const [other] = [...fingers].find(([id]) => id !== event.pointerId).slice(1);
      const apart = Math.max(8, Math.abs(before - other));
      zoom(apart / Math.max(8, Math.abs(event.clientX - other)), timeAt((event.clientX + other) / 2));
    }
    if (before !== undefined) fingers.set(event.pointerId, event.clientX);
  });
  const point = (event) => {
    const span = spanAt(row, event);
    const marked = span && span[KIND] === WAIT ? opOf(row.timeline, span) : undefined;
    if (marked !== row.marked) row.marked = marked, drawLine(row);
    tell(event, span && textOf(row, span));
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", () => {
    row.marked = undefined;
    drawLine(row);
    tell();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY / 300), timeAt(event.clientX));
  }, {passive: false});
  canvas.addEventListener("keydown", (event) => {
    const step = (view.end - view.begin) / 8;
    const acts = {"+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => (whole(), drawLines()),
                  ArrowLeft: () => move(view.begin - step), ArrowRight: () => move(view.begin + step)};
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
}

// ---- Waits by layer.

function layerChart(row, most) {
  const count = data.layers.length, width = 1000, height = 70, step = width / (count + 1);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", height, role: "img",
                           "aria-label": "waits of " + row.name + " by layer"});
  svg.append(draw("rect", {x: 0, y: height - 1, width, height: 1, fill: "var(--line)"}));
  for (const wait of row.layers) {
    const place = wait.layer < 0 ? count : wait.layer, tall = Math.max(1, (height - 2) * wait.us / most);
    svg.append(draw("rect", {x: place * step, y: height - tall, width: Math.max(step * 0.9, 1.5), height: tall, fill: LOOKS[WAIT][1]}));
    const target = draw("rect", {x: place * step - 2, y: 0, width: step + 4, height, fill: "transparent"});
    note(target, "before " + layerName(wait.layer) + ": " + time(wait.us) + (wait.reason ? "\n" + wait.reason : ""));
    svg.append(target);
  }
  return svg;
}
function drawLayers() {
  const most = Math.max(1e-9, ...[...shown].flatMap((row) => row.layers.map((wait) => wait.us)));
  $("layers").replaceChildren(...inOrder().map((row) => {
    const longest = row.layers.reduce((best, wait) => best && best.us >= wait.us ? best : wait, undefined);
    const words = longest ? `waits ${time(row.exposed_us)} in each iteration, most before ${layerName(longest.layer)}: ${time(longest.us)}` +
      (longest.reason ? ` (${longest.reason})` : "") : "waits for nothing";
    return make("div", {class: "layer"}, make("b", {}, row.name), " " + words, ...(longest ? [layerChart(row, most)] : []));
  }));
}

function showLines() {
  $("lines").replaceChildren(...inOrder().map((row) => {
    row.canvas = make("canvas", {tabindex: 0, role: "img", "aria-label":
      `timeline of ${row.name}: ${time(row.iteration_us)} in each iteration, of which ${time(row.exposed_us)} waiting`});
    listen(row);
    return make("div", {class: "line"}, make("b", {}, row.name), ` (${row.effect ? row.effect + ", " : ""}${row.origin}): ` +
      `${time(row.iteration_us)} in each iteration, ${time(row.exposed_us)} of it waiting`, row.canvas);
  }));
  const used = new Set([...shown].flatMap((row) => row.timeline.spans.map((span) => lookOf(row.timeline, span))));
  $("legend").replaceChildren(...[...used].sort((a, b) => a - b).map((look) => {
    const box = make("i");
    box.style.background = look === WAIT ? "repeating-linear-gradient(135deg, #fbd5d6 0 2px, #e5484d 2px 4px)" : LOOKS[look][1];
    return make("span", {}, box, LOOKS[look][0]);
  }), make("span", {class: "dim"}, "darker: every other iteration"));
  drawLines();
  drawLayers();
}
for (const row of withTimeline) {
  const chip = make("button", {type: "button", "aria-pressed": shown.has(row)}, row.name + (row.effect ? "" : " (" + row.origin + ")"));
  chip.addEventListener("click", () => {
    if (!shown.delete(row)) shown.add(row);
    chip.setAttribute("aria-pressed", shown.has(row));
    whole();
    showLines();
  });
  $("picks").append(chip);
}
$("in").addEventListener("click", () => zoom(0.6));
$("out").addEventListener("click", () => zoom(1 / 0.6));
$("all").addEventListener("click", () => { whole(); drawLines(); });

// ---- The table.

const base = rows.find((row) => row.name === data.baseline && row.iteration_us !== undefined);
const COLUMNS = [
  ["scheme", (row) => row.name, String, true],
  ["effect", (row) => row.effect || row.origin, String, true],
  ["iteration", (row) => row.iteration_us, time],
  ["exposed", (row) => row.exposed_us, time],
  ["x compute", (row) => row.compute_us > 0 ? row.iteration_us / row.compute_us : undefined, (value) => value.toFixed(3)],
  ["speed / " + data.baseline, (row) => base && base.iteration_us / row.iteration_us, (value) => value.toFixed(2)],
  ["bound", (row) => row.bound_us, time],
  ["over bound", (row) => row.bound_us > 0 ? row.iteration_us / row.bound_us - 1 : undefined, (value) => (100 * value).toFixed(2) + " %"],
  ["what binds", (row) => row.bound, String, true],
  ["updates", (row) => row.updates, (value) => value.toFixed(3)],
  ["staleness", (row) => row.staleness, String],
  ["ops", (row) => row.ops, (value) => digits(value)],
  ["bytes", (row) => row.bytes, bytes],
  ["extra memory", (row) => row.extra_bytes, bytes]].filter(([, of]) => rows.some((row) => of(row) !== undefined));
let sorting = [2, 1];
function drawTable() {
  const [column, direction] = sorting, value = COLUMNS[column][1];
  const known = (row) => row.starves === undefined && value(row) !== undefined;
  const order = [...rows].sort((a, b) => {
    if (!known(a) || !known(b)) return known(b) - known(a);
    return (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * direction || byTime(a, b);
  });
  const best = Math.min(...rows.filter((row) => row.effect && row.iteration_us !== undefined).map((row) => row.iteration_us));
  document.querySelector("thead").replaceChildren(make("tr", {}, ...COLUMNS.map(([name, , , left], index) => {
    const button = make("button", {type: "button"}, name + (index === column ? (direction > 0 ? " ▲" : " ▼") : ""));
    button.addEventListener("click", () => { sorting = [index, index === column ? -direction : 1]; drawTable(); });
    return make("th", {class: left ? "left" : "", "aria-sort": index !== column ? "none" : direction > 0 ? "ascending" : "descending"}, button);
  })));
  document.querySelector("tbody").replaceChildren(...order.map((row) => {
    if (row.starves !== undefined)
      return make("tr", {}, make("td", {class: "left"}, row.name), make("td", {class: "left"}, row.effect),
                  make("td", {class: "why", colspan: COLUMNS.length - 2}, "infeasible: " + row.starves));
    return make("tr", {class: row.iteration_us === best ? "best" : ""}, ...COLUMNS.map(([, of, text, left]) => {
      const value = of(row);
      return make("td", {class: left ? "left" : "", ...(text === String ? {title: value ?? ""} : {})}, value === undefined ? "-" : text(value));
    }));
  }));
  showEdge();
}

// Many systems hide scroll bars until somebody scrolls: the page says that there is more.
const scroll = document.querySelector(".scroll");
function showEdge() {
  const {left, width} = scroll.getBoundingClientRect(), [first, ...others] = document.querySelectorAll("th");
  const from = first.getBoundingClientRect().right - 1, to = left + width + 1;
  const hidden = others.filter((head) => head.getBoundingClientRect().left < from || head.getBoundingClientRect().right > to);
  $("beside").textContent = `Scroll the table sideways: ${hidden.length} of ${others.length + 1} columns are out of sight.`;
  $("beside").hidden = !hidden.length;
  scroll.parentNode.classList.toggle("more", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
}
scroll.addEventListener("scroll", showEdge);

// ---- What if.

const grid = data.grid;
const onGrid = grid ? rows.filter((row) => grid.iteration_us[row.index]?.some((us) => us !== null)) : [];
const off = grid ? rows.slice(0, grid.iteration_us.length).filter((row) => row.iteration_us && !onGrid.includes(row)) : [];
$("off").hidden = !off.length;
$("off").textContent = `Without what-ifs, which would take long: ${off.map((row) => row.name).join(", ")}.`;
const place = grid ? [...grid.here] : [];
const timeAt = (row, [worker, gigabit, startup]) =>
  grid.iteration_us[row.index][(worker * grid.gigabits.length + gigabit) * grid.startup_us.length + startup];
const AXES = grid ? [
  {label: "Workers", values: grid.workers, text: (value) => value + (value === 1 ? " worker" : " workers")},
  {label: "Bandwidth", values: grid.gigabits, text: (value) => digits(value, 3) + " Gb/s"},
  {label: "Start-up", values: grid.startup_us, text: time}] : [];

function drawBars() {
  const found = onGrid.map((row) => [row, timeAt(row, place)]).filter(([, us]) => us !== null)
    .sort((a, b) => a[1] - b[1] || byTime(a[0], b[0]));
  const most = Math.max(...found.map(([, us]) => us)), baseline = found.find(([row]) => row.name === data.baseline);
  // One that is far slower than the others leaves them no room.
  const full = Math.min(most, 2.5 * (baseline ? baseline[1] : most));
  const places = AXES.map((axis, index) => axis.text(axis.values[place[index]])).join(", ");
  const exact = found.find(([row]) => row.effect === "exact");
  $("found").textContent = `${places}: ` + (exact ? `the fastest exact plan is ${exact[0].name} with ${time(exact[1])}` +
    (baseline ? `, ${digits(baseline[1] / exact[1], 3)} times as fast as ${data.baseline}` : "") + "; " : "") +
    (found.length ? `the fastest of all is ${found[0][0].name} (${found[0][0].effect}) with ${time(found[0][1])}.` : "no scheme has a plan.");
  $("bars").replaceChildren(...found.map(([row, us]) => {
    const compute = make("i"), exposed = make("i"), share = (part) => 100 * Math.min(1, part / full) + "%";
    compute.style.cssText = `width: ${share(Math.min(us, row.compute_us))}; background: ${LOOKS[0][1]}`;
    exposed.style.cssText = `width: ${share(Math.max(0, us - row.compute_us))}; background: ${LOOKS[WAIT][1]}`;
    const ratio = baseline ? `, ${digits(baseline[1] / us, 3)} x ${data.baseline}` : "";
    const bar = make("div", {class: "bar"}, make("span", {}, row.name + " ", make("span", {class: "dim"}, row.effect)),
                     make("span", {class: "track"}, compute, exposed), make("span", {class: "number"}, time(us) + ratio));
    note(bar, `${row.name}: ${time(Math.min(us, row.compute_us))} compute, ${time(Math.max(0, us - row.compute_us))} exposed`);
    return bar;
  }));
}

// Places of labels, each at least `apart` from the next and all between `low` and `high`, near where they want to be.
function spread(wanted, apart, low, high) {
  const at = [...wanted];
  for (let i = 1; i < at.length; ++i) at[i] = Math.max(at[i], at[i - 1] + apart);
  for (let i = at.length - 1, limit = high; i >= 0; --i, limit -= apart) at[i] = Math.max(low + i * apart, Math.min(at[i], limit));
  return at;
}
function logTicks(low, high) {
  const list = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
    for (const factor of [1, 2, 5]) if (factor * 10 ** power >= low * 0.999 && factor * 10 ** power <= high * 1.001) list.push(factor * 10 ** power);
  return list.length > 1 ? list : [low, high];
}
function chart(axis) {
  const {values, label, text} = AXES[axis], width = Math.max(300, Math.min(620, $("charts").clientWidth || 620));
  const ratio = $("measure").value === "baseline", baseline = onGrid.find((row) => row.name === data.baseline);
  const value = (row, index) => {
    const at = place.map((here, each) => each === axis ? index : here), us = timeAt(row, at);
    const unit = ratio ? timeAt(baseline, at) : row.compute_us;
    return us === null || !unit || (ratio && !us) ? undefined : ratio ? unit / us : us / unit;
  };
  const curves = onGrid.map((row) => ({row, points: values.map((_, index) => [index, value(row, index)]).filter(([, y]) => y > 0)}))
    .filter((curve) => curve.points.length);
  const all = curves.flatMap((curve) => curve.points.map(([, y]) => y));
  if (!all.length) return make("p", {class: "dim"}, label + ": nothing to show");
  const low = Math.min(...all) / 1.05, high = Math.max(...all) * 1.05, shift = values[0] > 0 ? 0 : values[1] / 4;
  const left = 44, right = width - 128, top = 26, height = 330, bottom = height - 34;
  const logX = (x) => Math.log(x + shift), span = logX(values.at(-1)) - logX(values[0]);
  const x = (index) => left + (right - left) * (logX(values[index]) - logX(values[0])) / span;
  const y = (number) => bottom - (bottom - top) * Math.log(number / low) / Math.log(high / low);
  const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "curves over " + label});
  const write = (at, line, words, anchor = "start", name = "faint") => svg.append(draw("text", {x: at, y: line, "text-anchor": anchor, class: name}, words));
  write(left, 14, `${label}; ${AXES.filter((_, each) => each !== axis).map((other) => other.text(other.values[place[AXES.indexOf(other)]])).join(", ")}`, "start", "");
  for (const tick of logTicks(low, high)) {
    svg.append(draw("line", {x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: "var(--line)"}));
    write(left - 5, y(tick) + 4, digits(tick, 3), "end");
  }
  values.forEach((tick, index) => {
    const here = index === place[axis];
    svg.append(draw("line", {x1: x(index), x2: x(index), y1: top, y2: bottom, stroke: here ? "var(--ink)" : "var(--line)"}));
    write(x(index), bottom + 16, axis === 2 ? time(tick) : digits(tick, 3), "middle");
  });
  write((left + right) / 2, bottom + 31, axis === 0 ? "workers" : axis === 1 ? "Gb/s of the first link" : "start-up of the first link", "middle");
  curves.sort((a, b) => y(a.points.at(-1)[1]) - y(b.points.at(-1)[1]));
  const labels = spread(curves.map((curve) => y(curve.points.at(-1)[1])), 13, top, bottom);
  curves.forEach((curve, index) => {
    const stroke = `var(--${effectOf(curve.row)})`, dash = curve.row.effect === "exact" ? "none" : "5 3";
    const points = curve.points.map(([at, number]) => `${x(at)},${y(number)}`).join(" ");
    const line = draw("polyline", {points, fill: "none", stroke, "stroke-width": 1.8, "stroke-dasharray": dash});
    const end = curve.points.at(-1), name = draw("text", {x: right + 14, y: labels[index] + 4, style: `fill: ${stroke}`},
                                                 curve.row.name.length > 17 ? curve.row.name.slice(0, 16) + "…" : curve.row.name);
    const target = draw("polyline", {points, fill: "none", stroke: "transparent", "stroke-width": 12});
    for (const part of [name, target]) {
      note(part, `${curve.row.name} (${curve.row.effect})\n` + curve.points.map(([at, number]) => `${text(values[at])}: ${digits(number, 3)}`).join("\n"));
      part.addEventListener("pointerenter", () => line.setAttribute("stroke-width", 4));
      part.addEventListener("pointerleave", () => line.setAttribute("stroke-width", 1.8));
    }
    svg.append(line, draw("line", {x1: x(end[0]), y1: y(end[1]), x2: right + 12, y2: labels[index], stroke, "stroke-width": 0.6}), target, name);
  });
  return svg;
}
function drawCharts() {
  $("charts").replaceChildren(...AXES.map((axis, index) => axis.values.length > 1 && chart(index)).filter(Boolean));
}
function whatIf() { drawBars(); drawCharts(); }
if (grid && onGrid.length && AXES.some((axis) => axis.values.length > 1)) {
  AXES.forEach((axis, index) => {
    if (axis.values.length < 2) return;
    const slider = make("input", {type: "range", min: 0, max: axis.values.length - 1, step: 1, value: place[index], "aria-label": axis.label});
    const output = make("output");
    const say = () => {
      const words = axis.text(axis.values[place[index]]) + (place[index] === grid.here[index] ? " (as given)" : "");
      output.textContent = words;
      slider.setAttribute("aria-valuetext", words);
    };
    slider.addEventListener("input", () => { place[index] = Number(slider.value); say(); whatIf(); });
    say();
    $("sliders").append(make("label", {class: "slider"}, axis.label, slider, output));
  });
  if (base) $("measure").append(make("option", {value: "baseline"}, data.baseline + " time / iteration time"));
  $("measure").addEventListener("change", drawCharts);
  $("effects").replaceChildren(...[...new Set(onGrid.map((row) => row.effect))].map((effect) => {
    const stroke = make("i");
    stroke.style.borderTop = `3px ${effect === "exact" ? "solid" : "dashed"} var(--${effect})`;
    return make("span", {}, stroke, effect);
  }));
} else {
  $("whatif").hidden = true;
}

// ---- The rest of the page.

if (data.facts) {
  const facts = data.facts;
  document.title = `${facts.workload}, ${facts.workers} workers: Gradweave report`;
  $("facts").textContent = `${facts.workload}: ${facts.layers} layers, ${facts.tensors} tensors, ${bytes(facts.bytes)}; forward ` +
    `${time(facts.forward_us)}, backward ${time(facts.backward_us)}; ${facts.workers} workers` +
    (facts.classes > 1 ? ` of ${facts.classes} classes` : "") + `, links ${facts.links.join(", ")}`;
}
$("advice").append(...data.advice.map((text) => make("li", {}, text)));
document.querySelector("#measured ul").append(...data.measured.map((text) => make("li", {}, text)));
for (const [id, list] of [["timelines", withTimeline], ["waits", withTimeline], ["next", data.advice], ["measured", data.measured]]) $(id).hidden = !list.length;
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  drawLines();
}
const dark = window.matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
whole();
showLines();
theme(dark.matches ? "dark" : "light");
drawTable();
if (!$("whatif").hidden) whatIf();
let width = 0;
new ResizeObserver(() => {
  if (width === document.body.clientWidth) return;
  width = document.body.clientWidth;
  drawLines();
  showEdge();
  if (!$("whatif").hidden) drawCharts();
}).observe(document.body);
