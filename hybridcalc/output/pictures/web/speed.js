// The least time of a decode step (hybridcalc/speed/step.py): its parts by bytes and operations of one rank, over what the
// GPU moves and computes at most. e: sizes of one combination of settings, rate: GB/s, B requests of L tokens in all.
"use strict";
function stepFloor(e, rate, B, L) {
  const own = Math.ceil(B / e.workers), passed = own * e.positions;
  const tokens = Math.min(passed * e.meeting, B * e.positions), touched = e.experts ? 1 - (1 - e.share) ** tokens : 0;
  const [full, windowed, window, sharing] = e.kv, [pairs, windowPairs, windowSeen] = e.pairs;
  const seen = e.selected === null ? 1 : L ? Math.min(L, e.selected) / L : 0;
  const kv = (full * L + windowed * Math.min(L, window)) * seen;
  const kvFlops = (pairs * L + windowPairs * Math.min(L, windowSeen || L)) * seen;
  const parts = [
    { name: "weights", role: "weights", bytes: e.weights + e.experts * touched, flops: e.flops * passed },
    { name: "KV", role: "kv", bytes: Math.floor(own * Math.round(kv) / sharing), flops: passed * kvFlops },
    { name: "state", role: "state", bytes: own * e.state, flops: passed * e.scan },
  ].filter((part) => part.bytes || part.flops);
  for (const part of parts) { part.ms = Math.max(part.bytes / rate / 1e6, part.flops / e.tflops / 1e9); }
  const sum = (what) => parts.reduce((all, part) => all + part[what], 0);
  const bytes = sum("bytes"), flops = sum("flops"), ms = Math.max(bytes / rate / 1e6, flops / e.tflops / 1e9);
  return { parts, bytes, flops, ms, each: 1000 * e.positions / ms };
}

// The pictures of a step: its least time by requests, and its parts under the roofline of the GPU.
function stepSeries(e, rate, B, L) {
  const most = Math.max(16, 4 * B), at = [...new Set(Array.from({ length: 60 }, (_, i) => Math.round(most ** (i / 59))))];
  const found = at.map((n) => [n, stepFloor(e, rate, n, L)]);
  const curve = (name, role, value) => ({ name, role, style: "line", points: found.map(([n, one]) => [n, value(one)]) });
  const names = found[0][1].parts.map((part) => [part.name, part.role]);
  return { most, series: [curve("a step", "balanced", (one) => one.ms), ...names.map(([name, role]) =>
    curve(name, role, (one) => one.parts.find((part) => part.name === name)?.ms ?? 0))] };
}
function rooflineSeries(e, rate, B, L) {
  const floor = stepFloor(e, rate, B, L), slope = rate / 1000, ridge = e.tflops / slope;
  const dot = (name, role, one) => ({ name, role, style: "dots", points: [[one.flops / one.bytes,
    Math.min(e.tflops, slope * one.flops / one.bytes)]] });
  const dots = [dot("a step", "balanced", floor), ...floor.parts.map((part) => dot(part.name, part.role, part))]
    .filter((one) => one.points[0][0] > 0 && Number.isFinite(one.points[0][0]));
  const low = Math.min(0.1, ...dots.map((one) => one.points[0][0] / 2));
  const high = Math.max(4 * ridge, ...dots.map((one) => 2 * one.points[0][0]));
  const roof = { name: "the GPU's most", role: "other", style: "line", points: [[low, low * slope], [ridge, e.tflops], [high, e.tflops]] };
  return { low, high, ridge, series: [roof, ...dots] };
}
