// A prefix cache with prompts that share nothing with each other, one request at a time, in turn: reuse/cache.py for chains.
// s: sessions, turns, rounds, first, added, growth, output (tokens), slots, kv (tokens); c: grid, chunk, interval.
"use strict";
function reuseRequests(s) {
  const found = [];
  for (let round = 0; round < s.rounds; round += 1) {
    let prompt = 0;
    for (let turn = 0; turn < s.turns; turn += 1) {
      prompt += turn ? s.output + s.added + (turn - 1) * s.growth : s.first;
      for (let session = 0; session < s.sessions; session += 1) {
        found.push([s.turns > 1 ? round * s.sessions + session : session, prompt, prompt + s.output]);
      }
    }
  }
  return found;
}
function reuseSimulate(s, c, requests) {
  const chains = new Map(), states = new Set(), order = new Set();
  const out = { requests: 0, hits: 0, prompt: 0, hit: 0, evictions: 0, lostToKv: 0 };
  let kv = 0, own = 0, chain = null, held = 0;
  const last = (node) => node.chain[node.chain.length - 1] === node;
  const used = (node) => node.chain === chain && node.depth <= held;
  const endOf = (nodes) => (nodes.length ? nodes[nodes.length - 1].depth : 0);
  const remove = (node) => {
    node.chain.pop();
    kv -= node.depth - endOf(node.chain);
    order.delete(node);
    if (!node.chain.length && node.chain !== chain) { chains.delete(node.id); }
  };
  const evict = () => {
    const [node] = states;
    states.delete(node);
    out.evictions += 1;
    if (last(node) && !used(node)) { remove(node); }
  };
  const makeKv = (tokens) => {
    while (kv + own + tokens > s.kv) {
      let gone = null;
      for (const node of order) { if (last(node) && !used(node)) { gone = node; break; } }
      if (!gone) { throw new Refused("a request has no room for its KV"); }
      if (states.delete(gone)) { out.evictions += 1; out.lostToKv += 1; }
      remove(gone);
    }
  };
  const touch = (depth) => {
    for (const node of chain.filter((one) => one.depth <= depth).reverse()) { order.delete(node); order.add(node); }
  };
  const nodeAt = (id, depth) => {
    const place = chain.findIndex((node) => node.depth >= depth);
    if (place >= 0 && chain[place].depth === depth) { return chain[place]; }
    const node = { id, depth, chain };
    if (place < 0) { kv += depth - endOf(chain); chain.push(node); } else { chain.splice(place, 0, node); }
    return node;
  };
  const use = (node) => { states.delete(node); states.add(node); };
  const save = (id, depth) => {
    const node = nodeAt(id, depth);
    if (states.has(node)) { use(node); } else {
      if (states.size >= s.slots) { evict(); }
      states.add(node);
    }
    if (depth > held) { own -= Math.min(depth - held, own); held = depth; }
    touch(depth);
  };
  for (const [id, prompt, total] of requests) {
    if (!chains.has(id)) { chains.set(id, []); }
    chain = chains.get(id);
    held = 0;
    const agreed = Math.min(endOf(chain), prompt - 1);
    if (agreed > 0) { nodeAt(id, agreed); }
    touch(agreed);
    const found = chain.filter((node) => node.depth <= agreed && states.has(node)).pop();
    const hit = found ? found.depth : 0, junction = floordiv(agreed, c.grid) * c.grid;
    held = hit;
    makeKv(prompt - hit);
    own = prompt - hit;
    if (found) { use(found); }
    for (let at = hit; at < prompt; at = Math.min(at + c.chunk, prompt)) {
      const end = Math.min(at + c.chunk, prompt), tracked = at + floordiv(end - at, c.grid) * c.grid;
      if (tracked > at) { save(id, at < junction && junction < tracked && (junction - at) % c.grid === 0 ? junction : tracked); }
    }
    const grown = Math.max(total - 1 - prompt, 0), decoded = floordiv(total - 1, c.interval) * c.interval;
    makeKv(grown);
    own += grown;
    if (decoded > prompt) { save(id, decoded); }
    own = 0;
    held = 0;
    out.requests += 1;
    out.hits += hit > 0;
    out.prompt += prompt;
    out.hit += hit;
    if (!chain.length) { chains.delete(id); }
    chain = null;
  }
  return out;
}
