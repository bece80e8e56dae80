// The page's behaviour: copy buttons, tables to sort, pictures, and the settings that recompute verdict, figures, pictures and
// launch line (arithmetic.js, speed.js, charts.js).
"use strict";
(() => {
  const announce = document.getElementById("announce");
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const held = document.getElementById(button.dataset.copy), text = held.textContent;
      try { await navigator.clipboard.writeText(text); } catch {
        const range = document.createRange();
        range.selectNodeContents(held);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      announce.textContent = `Copied ${text}`;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // A column is sorted by a button in its head: numbers by size, the rest by letters; once more turns it around.
  const valueOf = (row, column, number) => {
    const text = row.cells[column].textContent;
    const found = number && Number.parseFloat(text.replace(/[^\d.eE+-]/g, ""));
    return number ? (Number.isNaN(found) ? -Infinity : found) : text;
  };
  for (const head of document.querySelectorAll("table.sorted thead th")) {
    const body = head.closest("table").tBodies[0], button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const way = head.ariaSort === "ascending" ? -1 : 1, number = head.classList.contains("number"), column = head.cellIndex;
      for (const other of head.parentElement.cells) { other.removeAttribute("aria-sort"); }
      head.ariaSort = way === 1 ? "ascending" : "descending";
      body.append(...[...body.rows].sort((a, b) => {
        const [one, two] = [valueOf(a, column, number), valueOf(b, column, number)];
        return way * (number ? one - two || 0 : one.localeCompare(two, "en", { numeric: true }));
      }));
    });
  }

  for (const place of document.querySelectorAll("[data-picture]")) {
    draw(place, JSON.parse(document.getElementById(place.dataset.picture).textContent));
    again.observe(place);
  }
  const held = document.getElementById("play-data");
  if (!held) { return; }
  const play = JSON.parse(held.textContent);
  const form = document.getElementById("play-form"), say = document.getElementById("play-said");
  const field = (name) => document.getElementById(`set-${name}`);
  const counted = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
  const settings = () => Object.fromEntries(play.controls.map((control) =>
    [control.name, control.choices ? field(control.name).value : Number(field(control.name).value)]));
  const points = (count, low, high) => Array.from({ length: count }, (_, i) => low * (high / low) ** (i / (count - 1)));
  const lengthsOf = (longest) => [...new Set(points(400, 256, longest).map((x) => Math.round(x)))];
  const cellOf = (s) => play.table[(play.engine === "vllm" ? [s.tp, s.kv, s.ssm] : [s.tp, s.kv, s.ssm, s.strategy]).join("|")];
  const tried = (compute) => {
    try { return compute(); } catch (error) { if (error instanceof Refused) { return null; } throw error; }
  };
  const TOKENS = (high) => ({ title: "tokens a request holds", unit: "tokens", log: true, low: 256, high });
  const REQUESTS = { title: "requests at once", unit: "number", log: false, low: null, high: null };
  const chart = (name, x, y, series, marks, bands = []) =>
    ({ title: play.charts[name], told: "", x, y, series, marks, bands, labels: [] });
  // What the caches of a rank hold beside what else the GPU does, as far as that is known.
  const gpuParts = (e, pools) => {
    const others = (e.others || []).map(([name, gib]) => ({ name, bytes: gib * GIB,
      role: { weights: "weights", headroom: "headroom", context: "context" }[name] || "other" }));
    const total = pools.reduce((sum, pool) => sum + pool[2], 0);
    const parts = pools.map(([name, role, bytes]) => ({ name, role, bytes: bytes * 2000 > total ? bytes : 0 }));
    return [...others.filter((part) => part.name === "weights"), ...parts, ...others.filter((part) => part.name !== "weights")];
  };

  // Each fills `found` with what settings come to, as far as they get: figures, parts of the memory, pictures, and the verdict.
  const engines = {
    sglang(s, found) {
      const e = cellOf(s), figures = found.figures;
      if (e.refused) { throw new Refused(e.refused); }
      const c = { ...play.constants, ...e.own };
      const star = balancedRatio(e, c, s.length), slots = pinnedSlots(s.concurrency, e, c);
      const served = (memory, ratio, fixed, length) => sglangServe(sglangSize(e, c, memory, ratio, fixed), e, c, length);
      const pinned = tried(() => served(s.memory, s.ratio, slots, s.length));
      figures["slots-per-request"] = whole(e.S);
      figures["ratio-star"] = told(star, "ratio");
      figures.pin = whole(slots);
      figures["pin-at-once"] = pinned ? whole(pinned.atOnce) : "does not start";
      found.charts.ratios = ratios(s, c, star, (x) => served(s.memory, x, null, s.length));
      const size = tried(() => sglangSize(e, c, s.memory, s.ratio, play.slots));
      found.charts.lengths = lengths(s, e, c, size);
      const sized = size || sglangSize(e, c, s.memory, s.ratio, play.slots);
      const now = sglangServe(sized, e, c, s.length);
      Object.assign(figures, { slots: whole(sized.K), tokens: whole(sized.T * c.dcp), limit: whole(sized.R),
        "by-state": whole(now.byState), "by-kv": whole(now.byKv), "at-once": whole(now.atOnce) });
      const pools = [["state pool", "state", sized.charged], ["draft states", "scratch", sized.drafts],
        ["KV pool", "kv", Math.trunc(sized.T * Math.max(...e.prices))]];
      const left = s.memory * GIB - pools.reduce((sum, pool) => sum + pool[2], 0);
      found.parts = gpuParts(e, [...pools, ["unused", "unused", Math.trunc(left)]]);
      const enough = now.atOnce >= s.concurrency ? "" : `, fewer than the ${whole(s.concurrency)} wanted`;
      const binds = { state: "the state pool binds", kv: "the KV pool binds", limit: "the request limit binds",
        context: "longer than the context" };
      const each = c.dp > 1 ? ` on each of ${c.dp} workers` : "";
      found.atOnce = now.atOnce;
      found.said = `${counted(now.atOnce, "request")} of ${counted(s.length, "token")} at once${each}${enough}: ${binds[now.binding]}.`;
    },
    vllm(s, found) {
      const e = cellOf(s), figures = found.figures;
      if (e.refused) { throw new Refused(e.refused); }
      const c = { ...play.constants, ...e.own };
      figures.block = whole(e.block);
      found.charts.lengths = blocks(s, e, c);
      const served = vllmServe(e, c, s.memory, s.seqs, s.length);
      Object.assign(figures, { blocks: whole(served.blocks), each: whole(served.each), "per-request": whole(served.perRequest),
        fits: whole(served.fits), "at-once": whole(served.atOnce) });
      const state = e.groups.filter((g) => g.kind === "state").reduce((sum, g) => sum + blocksHeld(g, e, s.length), 0);
      const used = served.each * served.atOnce, block = e.perBlock;
      found.parts = gpuParts(e, [["blocks of states", "state", state * served.atOnce * block],
        ["blocks of KV", "kv", (used - state * served.atOnce) * block], ["free blocks", "unused", (served.blocks - used) * block]]);
      const binds = { blocks: "the blocks bind", limit: "max_num_seqs binds", context: "longer than max_model_len" };
      const each = c.dp > 1 ? ` on each of ${c.dp} replicas` : "";
      found.atOnce = served.atOnce;
      found.said = `${counted(served.atOnce, "request")} of ${counted(s.length, "token")} at once${each}: ${binds[served.binding]}.`;
    },
  };
  // How long a step takes at least, of as many requests as run at once on all workers; nothing where no rates are known.
  const timed = (s, found) => {
    const e = play.speed?.cells[[s.tp, s.kv, s.ssm].join("|")], requests = found.atOnce * (play.speed?.workers ?? 1);
    if (!e || !requests) { return; }
    const rate = play.speed.bandwidth, floor = stepFloor(e, rate, requests, s.length);
    const few = (value) => (value >= 9.95 ? whole(Math.round(value)) : String(Number(value.toPrecision(2))));
    Object.assign(found.figures, { "step-ms": floor.ms >= 99.95 ? whole(Math.round(floor.ms)) : String(Number(floor.ms.toPrecision(3))),
      "pace-each": few(floor.each), "pace-all": few(requests * floor.each) });
    const step = stepSeries(e, rate, requests, s.length), roof = rooflineSeries(e, rate, requests, s.length);
    found.charts.step = chart("step", { title: "requests in a step", unit: "number", log: true, low: 1, high: step.most },
      { title: "ms", unit: "ratio", log: true, low: null, high: null }, step.series, [{ at: requests, label: `${whole(requests)} at once` }]);
    found.charts.roofline = chart("roofline", { title: "FLOP a byte moved", unit: "ratio", log: true, low: roof.low, high: roof.high },
      { title: "TFLOP/s", unit: "ratio", log: true, low: null, high: null }, roof.series,
      [{ at: roof.ridge, label: `${whole(Math.round(roof.ridge))} FLOP/B` }]);
  };
  engines.reuse = (s, found) => {
    const c = play.constants, asked = { ...play.fixed, ...s };
    const requests = reuseRequests(asked), kv = s.kv >= play.kvUnlimited ? Infinity : s.kv;
    const ran = (slots) => reuseSimulate({ ...asked, slots, kv }, c, requests);
    const now = ran(s.slots), percent = (one) => 100 * one.hit / one.prompt;
    Object.assign(found.figures, { reused: told(percent(now), "ratio"), hit: whole(now.hits), lost: whole(now.evictions),
      recomputed: whole(now.prompt - now.hit), "lost-kv": whole(now.lostToKv) });
    found.said = `${told(percent(now), "ratio")} % of prompt tokens reused, in turn, without pauses.`;
    const size = play.kind === "cyclic" ? `prefixes=${s.sessions},tokens=${s.first}`
      : `n=${s.sessions},history=${s.first},turns=${s.turns},tool=${s.added},think=0`;
    const limit = kv === Infinity ? "" : ` --max-total-tokens ${s.kv}`;
    const rest = `,output=${asked.output},rounds=${asked.rounds}${play.kind === "agents" ? `,growth=${asked.growth}` : ""}`;
    found.launch = `hybridcalc reuse --slots ${s.slots}${limit} --workload ${play.kind}:${size}${rest}`;
    const most = Math.max(s.slots, 4 * s.sessions), tries = requests.length > 6000 ? 8 : 24;
    const at = [...new Set([...points(tries, 1, most).map(Math.round), s.slots, s.sessions])].sort((a, b) => a - b);
    const rows = at.map((slots) => [slots, percent(slots === s.slots ? now : ran(slots))]);
    found.charts.tried = chart("tried", { title: "slots for states", unit: "number", log: false, low: 0, high: most },
      { title: "prompt tokens reused, %", unit: "number", log: false, low: 0, high: 100 },
      [line("with these settings", "answer", rows)], [{ at: s.slots, label: `${whole(s.slots)} slots` }]);
  };
  const line = (name, role, rows, style = "steps") => ({ name, role, points: rows, style });
  const ratios = (s, c, star, served) => {
    const [low, high] = play.ratios, found = [], bands = [];
    for (const x of points(400, low, high)) {
      const one = tried(() => served(x));
      if (!one) { continue; }
      found.push([x, one]);
      const last = bands[bands.length - 1];
      if (last) { last.high = x; }
      if (!last || last.role !== one.binding) {
        const label = { state: "state pool binds", kv: "KV pool binds", limit: "request limit binds", context: "beyond the context" }[one.binding];
        bands.push({ low: x, high: x, role: one.binding, label });
      }
    }
    if (!found.length) { return null; }
    const best = Math.max(1, ...found.map(([, one]) => Math.min(one.byState, one.byKv)));
    const near = found.reduce((a, b) => (Math.abs(Math.log(b[0] / s.ratio)) < Math.abs(Math.log(a[0] / s.ratio)) ? b : a));
    // The pool that does not bind leaves the picture at so many times what both hold at most (curves.py).
    const today = play.slots === null ? 1.1 * Math.max(near[1].byState, near[1].byKv) : 0;
    const top = Math.max(2.2 * best, Math.min(8 * best, today));
    const marks = [{ at: star, label: `r* = ${told(star, "ratio")}` }];
    if (play.slots === null) { marks.push({ at: s.ratio, label: `ratio ${s.ratio}` }); }
    return chart("ratios", { title: "--mamba-full-memory-ratio", unit: "ratio", log: true, low, high }, { ...REQUESTS, high: top }, [
      line("requests at once", "answer", found.map(([x, one]) => [x, one.atOnce])),
      line("state slots admit", "state", found.map(([x, one]) => [x, one.byState])),
      line("KV tokens admit", "kv", found.map(([x, one]) => [x, one.byKv]))], marks, bands);
  };
  const lengths = (s, e, c, sized) => {
    const at = lengthsOf(play.longest), marks = [{ at: s.length, label: `L = ${whole(s.length)}` }];
    const series = [line("at the balanced ratio", "balanced", at.map((x) => [x, balancedRequests(e, c, s.memory, x)]))];
    if (sized) {
      const served = at.map((x) => [x, sglangServe(sized, e, c, x)]);
      series.unshift(line("requests at once", "answer", served.map(([x, one]) => [x, one.atOnce])),
        line("state slots admit", "state", served.map(([x, one]) => [x, one.byState])),
        line("KV tokens admit", "kv", served.map(([x, one]) => [x, one.byKv])));
      const admitted = floordiv(sized.K, e.S);
      if (admitted) {
        const balanced = Math.floor(sized.T * c.dcp / admitted);
        marks.push({ at: balanced, label: `balanced at ${whole(balanced)}` });
      }
    }
    return overLength(series, marks);
  };
  const blocks = (s, e, c) => {
    const at = lengthsOf(play.longest).filter((x) => x <= e.length);
    const served = at.map((x) => [x, tried(() => vllmServe(e, c, s.memory, s.seqs, x))]).filter(([, one]) => one);
    return overLength([line("requests at once", "answer", served.map(([x, one]) => [x, one.atOnce])),
      line("blocks admit", "kv", served.map(([x, one]) => [x, one.fits])),
      line("--max-num-seqs", "limit", served.map(([x]) => [x, s.seqs]))], [{ at: s.length, label: `L = ${whole(s.length)}` }]);
  };
  const overLength = (series, marks) => {
    const most = Math.max(...series.flatMap((one) => one.points.map((point) => point[1])));
    return most >= 1 ? chart("lengths", TOKENS(play.longest), { ...REQUESTS, log: true, low: 1, high: 1.2 * most }, series, marks) : null;
  };

  const computed = (s) => {
    const found = { figures: {}, charts: {}, parts: null, said: "", starts: true };
    try { engines[play.engine](s, found); timed(s, found); } catch (error) {
      if (!(error instanceof Refused)) { throw error; }
      found.said = `Does not start: ${error.message}.`;
      found.starts = false;
    }
    return found;
  };
  const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  const launchLine = (s) => {
    const { argv, env, flags } = play.launch;
    const set = Object.entries(flags).flatMap(([name, [flag, unset]]) => (String(s[name]) === unset ? [] : [flag, String(s[name])]));
    return [...Object.entries(env).map(([name, value]) => `${name}=${quoted(value)}`), ...[...argv, ...set].map(quoted)].join(" ");
  };
  const initial = settings(), given = computed(initial);
  for (const name of play.results) { document.getElementById(`given-${name}`).textContent = given.figures[name] ?? "-"; }
  // What is set is kept in the address, behind its #: whoever opens that sees the same.
  const remember = (s) => {
    const changed = Object.entries(s).filter(([name, value]) => value !== initial[name]);
    const text = new URLSearchParams(changed.map(([name, value]) => [name, String(value)])).toString();
    if (text || location.hash.includes("=")) { history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search); }
  };
  const recall = () => {
    if (!location.hash.includes("=")) { return false; }
    form.reset();
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      const control = play.controls.find((one) => one.name === name);
      const fits = control?.choices ? [...field(name).options].some((option) => option.value === value) : /^\d+(\.\d+)?$/.test(value);
      if (control && fits) { field(name).value = value; }
    }
    placeAll();
    return true;
  };

  let waiting = false;
  const recompute = () => {
    waiting = false;
    const s = settings();
    const wrong = play.controls.find((control) => !control.choices && !field(control.name).checkValidity());
    const found = wrong ? { figures: {}, charts: {}, parts: null, starts: false,
      said: `${wrong.label}: from ${whole(wrong.low)} to ${whole(wrong.high)}.` } : computed(s);
    say.textContent = found.said;
    say.classList.toggle("bad", !found.starts);
    for (const name of play.results) {
      const cell = document.getElementById(`result-${name}`);
      cell.textContent = found.figures[name] ?? "-";
      cell.classList.toggle("changed", cell.textContent !== document.getElementById(`given-${name}`).textContent);
    }
    const words = (wrong ? "-" : found.launch ?? launchLine(s)).split(" ");
    document.getElementById("play-launch").replaceChildren(...words.flatMap((word, n) => {
      const span = document.createElement("span");
      span.textContent = word;
      return n ? [" ", span] : [span];
    }));
    if (!wrong) { remember(s); }
    const sides = [["as given", given.parts], ["with these settings", found.parts]].filter(([, parts]) => parts);
    const same = JSON.stringify(given.parts) === JSON.stringify(found.parts);
    found.charts.memory = found.parts && { title: play.charts.memory, told: "", axis: "memory of one GPU",
      bars: (same ? [["", found.parts]] : sides).map(([name, parts]) => ({ name, parts, ticks: [] })) };
    // A picture is seen while it shows the settings: what cannot be drawn of them is hidden, not left as it was.
    for (const name of Object.keys(play.charts)) {
      const place = document.getElementById(`chart-${name}`), picture = found.charts[name];
      place.parentElement.style.visibility = picture ? "" : "hidden";
      if (picture) { draw(place, picture); }
    }
  };
  const later = () => { if (!waiting) { waiting = true; requestAnimationFrame(recompute); } };
  // A range runs over its exponent, so that each step changes its number by the same share.
  const place = (control) => {
    const range = document.getElementById(`range-${control.name}`), value = Number(field(control.name).value);
    range.value = String(Math.round(Math.log(value / control.low) / Math.log(control.high / control.low) * 1000));
    range.setAttribute("aria-valuetext", whole(value));
  };
  const placeAll = () => { for (const control of play.controls) { if (!control.choices) { place(control); } } };
  for (const control of play.controls) {
    const input = field(control.name);
    if (control.choices) {
      input.addEventListener("change", () => {
        // Other ranks and dtypes leave other memory; where that follows from the GPU, it is filled in.
        const left = cellOf(settings())?.gib;
        if (left !== undefined) { field("memory").value = String(left); place(play.controls.find((one) => one.name === "memory")); }
        later();
      });
      continue;
    }
    const range = document.getElementById(`range-${control.name}`);
    range.addEventListener("input", () => {
      const exact = control.low * (control.high / control.low) ** (range.value / 1000);
      input.value = control.whole ? String(Math.round(exact)) : String(Number(exact.toPrecision(4)));
      range.setAttribute("aria-valuetext", whole(Number(input.value)));
      later();
    });
    input.addEventListener("input", () => { place(control); later(); });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("play-reset").addEventListener("click", () => { form.reset(); placeAll(); later(); });
  const star = document.getElementById("play-star");
  if (star) {
    star.addEventListener("click", () => {
      const s = settings(), e = cellOf(s);
      if (e.refused) { return; }
      field("ratio").value = String(Number(balancedRatio(e, { ...play.constants, ...e.own }, s.length).toPrecision(3)));
      field("ratio").dispatchEvent(new Event("input"));
    });
  }
  addEventListener("hashchange", () => { if (recall()) { later(); } });
  for (const name of Object.keys(play.charts)) { again.observe(document.getElementById(`chart-${name}`)); }
  placeAll();
  recall();
  form.hidden = false;
  recompute();
})();
