// The page's behaviour: copy buttons, and the settings that recompute figures and pictures (arithmetic.js).
"use strict";
(async () => {
  const announce = document.getElementById("announce");
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      try { await navigator.clipboard.writeText(text); } catch {
        const range = document.createRange();
        range.selectNodeContents(document.getElementById(button.dataset.copy));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      announce.textContent = `Copied ${text}`;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  const held = document.getElementById("play-data");
  if (!held) { return; }
  const play = JSON.parse(held.textContent);
  const form = document.getElementById("play-form");
  const field = (name) => document.getElementById(`set-${name}`);
  const say = document.getElementById("play-said");
  const whole = (n) => n.toLocaleString("en");
  const counted = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
  const size = (n) => {
    for (const [unit, name] of [[2 ** 40, "TiB"], [GIB, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]]) {
      if (n >= unit) { return `${(n / unit).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${name}`; }
    }
    return `${whole(n)} B`;
  };
  const settings = () => {
    const found = {};
    for (const control of play.controls) {
      const input = field(control.name);
      found[control.name] = control.choices ? input.value : Number(input.value);
    }
    return found;
  };
  const set = (name, text) => { document.getElementById(`result-${name}`).textContent = text; };
  const points = (count, low, high) => Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));

  // Labels of marked lines above the picture, from the left each below the one before; those that lie to the left of
  // their line come on top (vega.py mark_rows).
  const markRows = (marks, low, high) => {
    const at = (x) => Math.log(x / low) / Math.log(high / low) * play.width;
    const shown = marks.filter((m) => m.x >= low && m.x <= high).sort((a, b) => a.x - b.x);
    const sided = shown.map((m) => ({ ...m, left: Number(at(m.x) + 10 + 7.2 * m.label.length > play.width) }));
    const upwards = [...sided.filter((m) => !m.left).reverse(), ...sided.filter((m) => m.left)];
    return upwards.map((m, row) => ({ ...m, row }));
  };
  // A single point that no line reaches sets how high the axis is.
  const withRoom = (rows, x, factor) => [...rows, { x, y: factor * Math.max(1, ...rows.map((row) => row.y)), series: "" }];
  // A curve that rises over `top` runs to the upper edge and ends there (chart.py cut).
  const cut = (curve, top) => curve.flatMap(([x, y], i) => {
    if (y <= top) { return [[x, y]]; }
    const near = [curve[i - 1], curve[i + 1]].find((other) => other && other[1] <= top);
    return near ? [[near[0] * (x / near[0]) ** ((top - near[1]) / (y - near[1])), top]] : [];
  });
  const lengthsOf = (longest) => [...new Set(points(65, 256, longest).map((x) => Math.min(longest, Math.round(x))))];

  const engines = {
    sglang(s) {
      const e = play.table[[s.tp, s.kv, s.ssm, s.strategy].join("|")], c = play.constants;
      set("slots-per-request", e.refused ? "-" : whole(e.S));
      if (e.refused) { throw new Refused(e.refused); }
      const star = balancedRatio(e, c, s.length), pin = pinnedSlots(s.concurrency, e, c);
      set("ratio-star", star.toLocaleString("en", { maximumSignificantDigits: 3 }));
      set("pin", whole(pin));
      const wanted = (slots) => { try { return sglangServe(sglangSize(e, c, s.memory, s.ratio, slots), e, c, s.length); }
        catch (error) { if (error instanceof Refused) { return null; } throw error; } };
      const pinned = wanted(pin);
      set("pin-at-once", pinned ? whole(pinned.atOnce) : "does not start");
      draw.ratios(s, e, c, star);
      draw.lengths(s, e, c);
      const sized = sglangSize(e, c, s.memory, s.ratio, play.slots);
      const served = sglangServe(sized, e, c, s.length);
      set("slots", whole(sized.K)); set("tokens", whole(sized.T * c.dcp)); set("limit", whole(sized.R));
      set("by-state", whole(served.byState)); set("by-kv", whole(served.byKv)); set("at-once", whole(served.atOnce));
      const rows = [["state pool", "state", sized.charged], ["draft states", "scratch", sized.drafts],
        ["KV pool", "kv", Math.trunc(sized.T * Math.max(...e.prices))]];
      const left = s.memory * GIB - rows.reduce((sum, row) => sum + row[2], 0);
      draw.memory([...rows, ["unused", "unused", Math.max(0, Math.trunc(left))]]);
      const enough = served.atOnce >= s.concurrency ? "" : `, fewer than the ${whole(s.concurrency)} wanted`;
      const binds = { state: "the state pool binds", kv: "the KV pool binds", limit: "the request limit binds" };
      return `${counted(served.atOnce, "request")} of ${counted(s.length, "token")} at once${enough}: ${binds[served.binding]}.`;
    },
    vllm(s) {
      const e = play.table[[s.tp, s.kv, s.ssm].join("|")], c = play.constants;
      set("block", e.refused ? "-" : whole(e.block));
      if (e.refused) { throw new Refused(e.refused); }
      draw.blocks(s, e, c);
      const served = vllmServe(e, c, s.memory, s.seqs, s.length);
      set("blocks", whole(served.blocks)); set("each", whole(served.each)); set("per-request", whole(served.perRequest));
      set("fits", whole(served.fits)); set("at-once", whole(served.atOnce));
      const state = e.groups.filter((g) => g.kind === "state").reduce((sum, g) => sum + blocksHeld(g, e, s.length), 0);
      const used = served.each * served.atOnce, block = e.perBlock;
      draw.memory([["blocks of states", "state", state * served.atOnce * block],
        ["blocks of KV", "kv", (used - state * served.atOnce) * block], ["free", "unused", (served.blocks - used) * block]]);
      const binds = { blocks: "the blocks bind", limit: "max_num_seqs binds", context: "longer than max_model_len" };
      return `${counted(served.atOnce, "request")} of ${counted(s.length, "token")} at once: ${binds[served.binding]}.`;
    },
  };

  const views = {};
  const drawn = { mode: "vega", renderer: "svg", actions: false, tooltip: false };
  for (const [name, spec] of Object.entries(play.charts)) {
    views[name] = (await vegaEmbed(`#chart-${name}`, spec, drawn)).view;
  }
  // A picture is seen while it shows the settings: what cannot be drawn of them is hidden, not left as it was.
  let fresh = new Set();
  const update = (name, data) => {
    const view = views[name];
    if (!view) { return; }
    fresh.add(name);
    for (const [key, rows] of Object.entries(data)) { view.data(key, rows); }
    view.runAsync();
  };
  const draw = {
    memory(parts) {
      let at = 0;
      const total = parts.reduce((sum, part) => sum + part[2], 0);
      const rows = parts.filter((part) => part[2] > 0).map(([part, role, bytes]) => {
        const row = { bar: "0", part, x: at / GIB, x2: (at + bytes) / GIB, mid: (at + bytes / 2) / GIB, ink: play.inks[role],
          label: bytes > 0.09 * total ? size(bytes) : "" };
        at += bytes;
        return row;
      });
      update("memory", { rows });
    },
    lengths(s, e, c) {
      const longest = play.longest, at = lengthsOf(longest), rows = [], names = play.series.lengths;
      let sized = null;
      try { sized = sglangSize(e, c, s.memory, s.ratio, play.slots); } catch (error) { if (!(error instanceof Refused)) { throw error; } }
      for (const x of at) {
        if (sized) {
          rows.push({ x, y: floordiv(sized.K, e.S), series: names[0] }, { x, y: floordiv(sized.T * c.dcp, x), series: names[1] });
        }
        rows.push({ x, y: balancedRequests(e, c, s.memory, x), series: names[2] });
      }
      const marks = [{ x: s.length, label: `L = ${whole(s.length)}` }];
      if (sized && floordiv(sized.K, e.S)) {
        const balanced = sized.T * c.dcp / floordiv(sized.K, e.S);
        marks.push({ x: balanced, label: `pools balanced at ${whole(Math.floor(balanced))} tokens` });
      }
      const seen = rows.filter((row) => row.y >= 1);
      if (!seen.length) { return; }
      update("lengths", { points: withRoom(seen, 256, 1), marks: markRows(marks, 256, longest) });
    },
    ratios(s, e, c, star) {
      const [low, high] = play.ratios, rows = [], bands = [], names = play.series.ratios, found = [];
      for (const x of points(129, low, high)) {
        try {
          const served = sglangServe(sglangSize(e, c, s.memory, x, null), e, c, s.length);
          found.push([x, served]);
          const last = bands[bands.length - 1];
          if (last) { last.x2 = x; }
          if (!last || last.binding !== served.binding) { bands.push({ x, x2: x, binding: served.binding }); }
        } catch (error) { if (!(error instanceof Refused)) { throw error; } }
      }
      const best = Math.max(1, ...found.map(([, served]) => Math.min(served.byState, served.byKv)));
      const today = found.reduce((near, one) => (!near || Math.abs(Math.log(one[0] / s.ratio)) < Math.abs(Math.log(near[0] / s.ratio))
        ? one : near), null);
      const seen = today && play.slots === null ? 1.1 * Math.max(today[1].byState, today[1].byKv) : 0;
      const top = Math.max(2.2 * best, Math.min(8 * best, seen));
      for (const [number, key] of [[0, "byState"], [1, "byKv"]]) {
        const curve = found.map(([x, served]) => [x, served[key]]);
        for (const [x, y] of cut(curve, top)) { rows.push({ x, y, series: names[number] }); }
      }
      const marks = [{ x: star, label: `r* = ${star.toLocaleString("en", { maximumSignificantDigits: 3 })}` }];
      if (play.slots === null) { marks.push({ x: s.ratio, label: `ratio ${s.ratio}` }); }
      for (const band of bands) {
        // The label lies in the widest stretch between marked lines, where it has room (vega.py band_rows).
        const inside = marks.map((m) => m.x).filter((x) => band.x < x && x < band.x2).sort((a, b) => a - b);
        const edges = [band.x, ...inside, band.x2];
        const [share, one] = edges.slice(1).map((x, i) => [x / edges[i], edges[i]]).reduce((a, b) => (b[0] > a[0] ? b : a));
        band.mid = one * Math.sqrt(share); band.fill = play.bands[band.binding].fill;
        const wide = Math.log(share) / Math.log(high / low) * play.width, text = play.bands[band.binding].label;
        band.label = wide > 6.6 * text.length ? text : "";
      }
      if (!found.length) { return; }
      update("ratios", { points: withRoom(rows, low, 1), bands, marks: markRows(marks, low, high) });
    },
    blocks(s, e, c) {
      const rows = [], names = play.series.lengths;
      for (const x of lengthsOf(play.longest)) {
        if (x > e.length) { break; }
        try { rows.push({ x, y: vllmServe(e, c, s.memory, s.seqs, x).fits, series: names[0] }); }
        catch (error) { if (!(error instanceof Refused)) { throw error; } }
        rows.push({ x, y: s.seqs, series: names[1] });
      }
      if (!rows.some((row) => row.y >= 1)) { return; }
      update("lengths", { points: withRoom(rows.filter((row) => row.y >= 1), 256, 1),
        marks: markRows([{ x: s.length, label: `L = ${whole(s.length)}` }], 256, play.longest) });
    },
  };

  let waiting = false;
  const recompute = () => {
    waiting = false;
    fresh = new Set();
    answer();
    for (const name of Object.keys(views)) {
      document.getElementById(`chart-${name}`).parentElement.style.visibility = fresh.has(name) ? "" : "hidden";
    }
  };
  const answer = () => {
    const s = settings();
    const wrong = play.controls.find((control) => !control.choices && !field(control.name).checkValidity());
    for (const name of play.results) { set(name, "-"); }
    say.classList.add("bad");
    if (wrong) {
      say.textContent = `${wrong.label}: from ${whole(wrong.low)} to ${whole(wrong.high)}.`;
      return;
    }
    try { say.textContent = engines[play.engine](s); say.classList.remove("bad"); } catch (error) {
      if (!(error instanceof Refused)) { throw error; }
      say.textContent = `Does not start: ${error.message}.`;
    }
  };
  const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(recompute); } };
  // A range runs over its exponent, so that each step changes its number by the same share.
  for (const control of play.controls) {
    const input = field(control.name);
    if (control.choices) { input.addEventListener("change", later); continue; }
    const range = document.getElementById(`range-${control.name}`);
    const place = () => {
      range.value = String(Math.round(Math.log(input.value / control.low) / Math.log(control.high / control.low) * 1000));
      range.setAttribute("aria-valuetext", whole(Number(input.value)));
    };
    range.addEventListener("input", () => {
      const exact = control.low * (control.high / control.low) ** (range.value / 1000);
      input.value = control.whole ? String(Math.round(exact)) : String(Number(exact.toPrecision(4)));
      range.setAttribute("aria-valuetext", whole(Number(input.value)));
      later();
    });
    input.addEventListener("input", () => { place(); later(); });
    place();
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("play-reset").addEventListener("click", () => { form.reset(); for (const control of play.controls) {
    if (!control.choices) { field(control.name).dispatchEvent(new Event("input")); } } later(); });
  const star = document.getElementById("play-star");
  if (star) {
    star.addEventListener("click", () => {
      const s = settings(), e = play.table[[s.tp, s.kv, s.ssm, s.strategy].join("|")];
      if (e.refused) { return; }
      field("ratio").value = String(Number(balancedRatio(e, play.constants, s.length).toPrecision(3)));
      field("ratio").dispatchEvent(new Event("input"));
    });
  }
  form.hidden = false;
  recompute();
})();
