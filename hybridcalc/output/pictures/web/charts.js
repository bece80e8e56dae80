// Charts and bars (engines/charts.py) as SVG, drawn for the width they have: letters keep their size, axes their number of
// ticks. A pointer or the arrow keys read the values. Colours are the page's own (roles of palette.py), so that they follow
// its light or dark scheme; each line has its own dashes as well, since not everybody sees colours.
"use strict";
const UNITS = [[2 ** 40, "TiB"], [GIB, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]];
const LETTER = 6.7, BOLD = 7.5, LINE = 16, HEIGHT = 240;
const DASHES = { answer: "", state: "7 3", kv: "2.5 2.5", balanced: "10 3 2 3", limit: "1 3", baseline: "5 5" };

const AGAIN = ["12 4", "5 2 1 2 1 2", "1 5"];
// The dashes of a line: its role's, and others where a role comes again.
const dashes = (one, series) => {
  const before = series.filter((other) => other.role === one.role).indexOf(one);
  return before ? AGAIN[(before - 1) % AGAIN.length] : DASHES[one.role] ?? (one.style === "dashed" ? "6 4" : "");
};
// A point of the nth series of points: told apart by its shape as well.
const dot = (one, series, x, y) => {
  const shapes = ["M-4 0A4 4 0 1 1 4 0A4 4 0 1 1-4 0Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z", "M-4-4H4V4H-4Z", "M0-5L5 4H-5Z", "M0 5L5-4H-5Z"];
  const at = series.filter((other) => other.style === "dots").indexOf(one);
  return element("path", { d: shapes[at % shapes.length], transform: `translate(${x} ${y})`, class: `fill-${one.role} dot` });
};
const whole = (n) => n.toLocaleString("en");
const size = (n) => {
  const [unit, name] = UNITS.find(([least]) => n >= least) || [1, "B"];
  const digits = unit === 1 ? 0 : 2;
  return `${(n / unit).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}`;
};
// A value on an axis, short; `exact`: as it is read.
function told(value, unit, exact) {
  if (unit === "bytes") {
    if (exact) { return size(value); }
    const [each, name] = UNITS.find(([least]) => value >= least) || [1, "B"];
    return value ? `${(value / each).toLocaleString("en", { maximumFractionDigits: 2 })} ${name}` : "0";
  }
  if (unit === "tokens" && !exact) {
    if (value >= 2 ** 20 && value % 2 ** 20 === 0) { return `${whole(value / 2 ** 20)}M`; }
    if (value >= 1024 && value % 1024 === 0) { return `${whole(value / 1024)}k`; }
  }
  if (unit === "ratio") { return value.toLocaleString("en", { maximumSignificantDigits: exact ? 4 : 3 }); }
  return value.toLocaleString("en", { maximumFractionDigits: unit === "tokens" ? 0 : 2 });
}

// Round values within [low, high], at most `most` (axes.py).
function ticksOf(axis, low, high, most) {
  if (axis.log && (axis.unit === "tokens" || axis.unit === "bytes")) {
    for (const base of [2, 4, 8, 16, 64, 256, 4096, 2 ** 20]) {
      const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9), last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
      if (last - first < most) { return Array.from({ length: last - first + 1 }, (_, i) => base ** (first + i)); }
    }
  }
  if (axis.log) {
    const first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
    const factors = 3 * (last - first) <= most + 3 ? [1, 2, 5] : [1], step = Math.max(1, Math.ceil((last - first) / most)), found = [];
    for (let e = first; e <= last; e += step) { for (const m of factors) { found.push(Number(`${m}e${e}`)); } }
    return found.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  }
  const unit = axis.unit === "bytes" ? (UNITS.find(([least]) => high >= least) || [1])[0] : 1;
  const range = (high - low) / unit, ten = 10 ** Math.floor(Math.log10(range / most));
  const least = axis.unit === "number" ? 1 : 0;
  const step = Math.max(least, [1, 2, 5, 10].map((m) => m * ten).find((each) => each * most >= range)) * unit;
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, i) => i * step).filter((tick) => tick >= low);
}

function element(name, attributes = {}, ...children) {
  const made = name === "p" || name === "div" || name === "ul" || name === "li" || name === "span"
    ? document.createElement(name) : document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) { made.setAttribute(key, value); }
  made.append(...children);
  return made;
}

// Draws into `place`; the picture is kept there and drawn again when the width changes.
function draw(place, picture) {
  const width = Math.max(240, place.clientWidth);
  place.picture = picture;
  place.drawn = width;
  const reading = element("div", { class: "reading", hidden: "" });
  place.replaceChildren(...(picture.series ? drawChart(picture, width, reading) : drawBars(picture, width, reading)), reading);
}
const again = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.picture && Math.abs(Math.max(240, target.clientWidth) - target.drawn) > 1) { draw(target, target.picture); }
  }
});

function legend(entries) {
  return element("ul", { class: "legend" }, ...entries.map(([key, words]) => element("li", {}, key, words)));
}
// What is read off a picture stands beside the place it is read at, within the picture.
function read(reading, lines, x, width) {
  reading.replaceChildren(...lines.map((line) => element("p", {}, line)));
  reading.hidden = false;
  reading.style.left = `${Math.max(0, Math.min(x + 10, width - reading.offsetWidth))}px`;
}

function drawBars(picture, width, reading) {
  const total = Math.max(1, ...picture.bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.bytes, 0)));
  const parts = new Map(), one = picture.bars.length === 1;
  for (const bar of picture.bars) { for (const part of bar.parts) { if (part.bytes && !parts.has(part.name)) { parts.set(part.name, part); } } }
  const key = (role) => element("svg", { width: 14, height: 14, "aria-hidden": "true" },
    element("rect", { width: 14, height: 14, rx: 2, class: `fill-${role} edge` }));
  const drawn = [legend([...parts.values()].map((part) => [key(part.role), one ? `${part.name} ${size(part.bytes)}` : part.name]))];
  const at = (bytes) => bytes / total * (width - 2) + 1;
  for (const bar of picture.bars) {
    if (bar.name) { drawn.push(element("p", { class: "bar-name" }, bar.name)); }
    const said = bar.parts.filter((part) => part.bytes).map((part) => `${part.name} ${size(part.bytes)}`).join(", ");
    const row = element("svg", { width, height: 40, role: "img", "aria-label": `${bar.name ? `${bar.name}: ` : ""}${said}` });
    let from = 0;
    for (const part of bar.parts.filter((each) => each.bytes)) {
      const x = at(from), wide = at(from + part.bytes) - x, words = size(part.bytes);
      row.append(element("rect", { x, y: 1, width: wide, height: 38, class: `fill-${part.role} edge` }));
      const label = [`${part.name} ${words}`, words].find((text) => text.length * LETTER + 6 < wide);
      if (label) { row.append(element("text", { x: x + wide / 2, y: 24, "text-anchor": "middle", class: `ink-${part.role}` }, label)); }
      row.addEventListener("pointermove", (event) => {
        const over = event.clientX - row.getBoundingClientRect().left;
        if (over < x || over >= x + wide) { return; }
        read(reading, [part.name, `${words}, ${(100 * part.bytes / total).toFixed(1)} %`], x, width);
        reading.style.top = `${row.getBoundingClientRect().bottom - row.parentElement.getBoundingClientRect().top}px`;
      });
      from += part.bytes;
    }
    row.addEventListener("pointerleave", () => { reading.hidden = true; });
    for (const tick of bar.ticks || []) { row.append(element("line", { x1: at(tick), x2: at(tick), y1: 29, y2: 39, class: "cut" })); }
    drawn.push(row);
  }
  const axis = { unit: "bytes", log: false }, ticks = ticksOf(axis, 0, total, Math.max(2, Math.floor(width / 90)));
  const scale = element("svg", { width, height: 38, "aria-hidden": "true" });
  for (const tick of ticks) {
    const anchor = tick === 0 ? "start" : at(tick) > width - 30 ? "end" : "middle";
    scale.append(element("line", { x1: at(tick), x2: at(tick), y1: 0, y2: 5, class: "axis" }),
      element("text", { x: at(tick), y: 17, "text-anchor": anchor, class: "tick" }, told(tick, "bytes")));
  }
  scale.append(element("text", { x: width / 2, y: 34, "text-anchor": "middle" }, picture.axis || ""));
  return [...drawn, scale];
}

function drawChart(picture, width, reading) {
  const { x, y, series } = picture;
  const range = (axis, side) => {
    const values = series.flatMap((one) => one.points.map((point) => point[side])).filter((value) => value > 0 || !axis.log);
    const low = axis.low ?? (axis.log ? Math.min(...values) : 0), high = axis.high ?? Math.max(...values);
    return [low, high > low ? high : low * 2 || 1];
  };
  const [left, right] = range(x, 0), [bottom, topmost] = range(y, 1);
  const yTicks = ticksOf(y, bottom, topmost, 6);
  const edge = 10 + Math.max(...yTicks.map((tick) => told(tick, y.unit).length), 1) * LETTER;
  const share = (axis, value, low, high) => axis.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const px = (value) => edge + share(x, value, left, right) * (width - edge - 12);
  // Labels of marked lines stand in rows above the plot, each below the one before, where no line crosses them.
  const shown = picture.marks.filter((mark) => mark.at >= left && mark.at <= right).sort((a, b) => a.at - b.at);
  const sided = shown.map((mark) => {
    const wide = mark.label.length * BOLD, at = px(mark.at), before = at + 6 + wide > width;
    return { ...mark, before, text: before ? Math.max(at - 5, wide) : at + 5 };
  });
  const rows = [...sided.filter((mark) => !mark.before).reverse(), ...sided.filter((mark) => mark.before)];
  const banded = picture.bands.length ? LINE : 0, top = LINE + 6 + rows.length * LINE + banded, height = top + HEIGHT;
  const py = (value) => height - share(y, Math.max(value, y.log ? bottom / 2 : value), bottom, topmost) * HEIGHT;
  const svg = element("svg", { width, height: height + 40, role: "img",
    "aria-label": `${picture.title}. ${picture.told} ${shown.map((mark) => mark.label).join("; ")}` });
  const clip = `clip-${picture.title.replace(/[^a-z]+/gi, "-")}`;
  svg.append(element("clipPath", { id: clip }, element("rect", { x: edge, y: height - HEIGHT - 1, width: width - edge - 11, height: HEIGHT + 2 })));
  for (const band of picture.bands) {
    const from = px(Math.max(band.low, left)), to = px(Math.min(band.high, right));
    svg.append(element("rect", { x: from, y: height - HEIGHT, width: Math.max(0, to - from), height: HEIGHT, class: `band-${band.role}` }));
    // The label lies in the widest stretch between marked lines, where it has room.
    const edges = [from, ...shown.map((mark) => px(mark.at)).filter((at) => at > from && at < to), to];
    const [wide, one] = edges.slice(1).map((at, i) => [at - edges[i], edges[i]]).reduce((a, b) => (b[0] > a[0] ? b : a));
    if (wide > LETTER * band.label.length) {
      svg.append(element("text", { x: one + wide / 2, y: height - HEIGHT - 5, "text-anchor": "middle", class: "tick slanted" }, band.label));
    }
  }
  for (const tick of yTicks) {
    svg.append(element("line", { x1: edge, x2: width - 12, y1: py(tick), y2: py(tick), class: "grid" }),
      element("text", { x: edge - 5, y: py(tick) + 4, "text-anchor": "end", class: "tick" }, told(tick, y.unit)));
  }
  svg.append(element("line", { x1: edge, x2: width - 12, y1: height, y2: height, class: "axis" }));
  const widest = Math.max(...ticksOf(x, left, right, 40).map((tick) => told(tick, x.unit).length), 2) * LETTER + 10;
  for (const tick of ticksOf(x, left, right, Math.max(2, Math.floor((width - edge) / widest)))) {
    svg.append(element("line", { x1: px(tick), x2: px(tick), y1: height, y2: height + 4, class: "axis" }),
      element("text", { x: Math.min(px(tick), width - told(tick, x.unit).length * LETTER / 2), y: height + 17, "text-anchor": "middle", class: "tick" }, told(tick, x.unit)));
  }
  svg.append(element("text", { x: 0, y: 12, class: "tick" }, y.title),
    element("text", { x: (edge + width) / 2, y: height + 35, "text-anchor": "middle" }, x.title));
  rows.forEach((mark, row) => {
    const at = px(mark.at), line = height - HEIGHT - banded - 5 - row * LINE;
    svg.append(element("line", { x1: at, x2: at, y1: line - 9, y2: height, class: "mark" }),
      element("text", { x: mark.text, y: line, "text-anchor": mark.before ? "end" : "start", class: "marked" }, mark.label));
  });
  const plot = element("g", { "clip-path": `url(#${clip})` });
  [...series].sort((a, b) => (a.role === "answer") - (b.role === "answer")).forEach((one) => {
    const points = one.points.filter(([at, value]) => (value > 0 || !y.log) && (at > 0 || !x.log));
    if (one.style === "dots") {
      for (const [at, value] of points) { plot.append(dot(one, series, px(at), py(value))); }
      return;
    }
    const path = points.map(([at, value], i) => one.style === "steps" && i
      ? `H${px(at).toFixed(1)}V${py(value).toFixed(1)}` : `${i ? "L" : "M"}${px(at).toFixed(1)} ${py(value).toFixed(1)}`).join("");
    if (path) { plot.append(element("path", { d: path, class: `line-${one.role}`, "stroke-dasharray": dashes(one, series) })); }
  });
  svg.append(plot);
  for (const [at, value, words] of picture.labels) {
    const before = px(at) + words.length * LETTER > width;
    svg.append(element("text", { x: px(at) + (before ? -7 : 7), y: py(value) - 7, "text-anchor": before ? "end" : "start", class: "tick" }, words));
  }
  const cursor = element("line", { y1: height - HEIGHT, y2: height, class: "cursor", visibility: "hidden" });
  svg.append(cursor);
  const steps = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  let place = -1;
  const show = (index) => {
    place = Math.max(0, Math.min(steps.length - 1, index));
    const at = steps[place];
    const lines = series.flatMap((one) => {
      const near = one.points.reduce((best, point) => (!best || Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), null);
      return near && Math.abs(share(x, near[0], left, right) - share(x, at, left, right)) < 0.02 ? [`${one.name}: ${told(near[1], y.unit, true)}`] : [];
    });
    cursor.setAttribute("x1", px(at)); cursor.setAttribute("x2", px(at)); cursor.setAttribute("visibility", "visible");
    read(reading, [`${told(x.unit === "tokens" ? Math.round(at) : at, x.unit, true)} ${x.unit === "tokens" ? "tokens" : ""}`, ...lines], px(at), width);
    reading.style.top = `${frame.offsetTop + top}px`;
  };
  const hide = () => { reading.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  const frame = element("div", { class: "frame", tabindex: "0", role: "group", "aria-label": `${picture.title}: arrow keys read its values` }, svg);
  frame.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const near = steps.map((value) => Math.abs(px(value) - at));
    show(near.indexOf(Math.min(...near)));
  });
  frame.addEventListener("pointerleave", hide);
  frame.addEventListener("blur", hide);
  frame.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (move) { event.preventDefault(); show(place < 0 ? Math.floor(steps.length / 2) : place + move); }
    if (event.key === "Escape") { hide(); }
  });
  const key = (one) => element("svg", { width: 30, height: 12, "aria-hidden": "true" }, one.style === "dots"
    ? dot(one, series, 15, 6)
    : element("path", { d: "M0 6H30", class: `line-${one.role}`, "stroke-dasharray": dashes(one, series) }));
  return [legend(series.map((one) => [key(one), one.name])), frame];
}
