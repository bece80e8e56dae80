// The engines' pool arithmetic, as hybridcalc/engines does it in Python, operation by operation: numbers here are the
// same doubles, and integers stay below 2**53. Tests run both on the same settings.
"use strict";
const GIB = 2 ** 30;

// Python's a // b of floats: exact remainder first.
function floordiv(a, b) {
  let mod = a % b;
  let div = (a - mod) / b;
  if (mod && (b < 0) !== (mod < 0)) { div -= 1; }
  if (!div) { return 0; }
  let floor = Math.floor(div);
  if (div - floor > 0.5) { floor += 1; }
  return floor;
}

class Refused extends Error {}

// K, T and R of one SGLang worker (engines/sglang/pools.py, planner.py). e: sizes of one combination of settings, c: what
// no slider changes; slots: --max-mamba-cache-size, or null for the ratio.
function sglangSize(e, c, gib, ratio, slots) {
  if (e.refused) { throw new Refused(e.refused); }
  const reserved = c.keepsDrafts && !e.replay ? c.draftTokens : 0;
  if (e.ringRequest && c.perWorker === null) { throw new Refused("ReplaySSM needs --max-running-requests"); }
  const fixedRing = c.perWorker !== null ? e.ringRequest * (c.perWorker + 1) : 0;
  const each = e.slot + e.ringSlot;
  let K, limitIsSlots = false;
  if (slots !== null) { K = floordiv(slots, c.dp); }
  else if (!c.radix && c.perWorker !== null) { K = c.perWorker; limitIsSlots = true; }
  else {
    const budget = gib * ratio / (1 + ratio) * GIB;
    if (!c.paddingCharged) {
      K = Math.trunc(reserved ? floordiv(budget, e.slot * (1 + reserved / e.S)) : floordiv(budget, e.slot));
    } else if (reserved) {
      const first = budget - e.slot * (1 + reserved) - e.ringSlot;
      K = Math.trunc(floordiv(first, e.slot * (1 + reserved / e.S) + e.ringSlot));
    } else { K = Math.trunc(floordiv(budget - fixedRing - each, each)); }
  }
  if (K <= 0) { throw new Refused("no room for a state slot"); }
  let requests = limitIsSlots ? K : floordiv(K, e.S);
  if (c.perWorker !== null) { requests = Math.min(c.perWorker, requests); }
  const padding = c.paddingCharged ? 1 : 0;
  const drafts = e.slot * (requests + padding) * reserved;
  const charged = c.paddingCharged ? (K + 1) * each + fixedRing : K * e.slot;
  let after = reserved ? gib - drafts / GIB : gib;
  after -= charged / GIB;
  if (after <= 0) { throw new Refused(`${K.toLocaleString("en")} state slots leave nothing for KV`); }
  const kvBytes = Math.trunc(after * GIB);
  const pages = (tokens) => floordiv(tokens, c.page) * c.page;
  let T = Math.min(...e.prices.map((price) => price ? pages(Math.trunc(floordiv(kvBytes, price)))
    : e.prices.some((other) => other) ? Infinity : pages(c.maxTotal || c.context)));
  if (c.maxTotal !== null) { T = pages(Math.min(T, c.maxTotal)); }
  if (T <= 0) { throw new Refused("the KV pool holds no page"); }
  if (c.window && pages(Math.trunc(T * c.window.ratio)) <= c.window.tokens + c.page) {
    throw new Refused("the sliding-window pool does not hold a window and a page");
  }
  const asked = c.perWorker === null ? Math.min(Math.max(Math.trunc(T / c.context * 512), 2048), 4096) : c.perWorker;
  const R = Math.min(asked, floordiv(T, 2), floordiv(K, e.S));
  if (R <= 0) { throw new Refused("slots and KV tokens serve no request"); }
  return { K, T, R, asked, drafts, charged, limitIsSlots, kvBytes };
}

// What a sizing admits of requests of L tokens, and what binds (engines/sglang/settings.py weigh).
function sglangServe(sized, e, c, L) {
  const tokens = sized.T * c.dcp;
  const byState = floordiv(sized.K, e.S);
  const byKv = Math.min(floordiv(tokens, L), floordiv(floordiv(tokens, c.dcp), 2));
  const limit = Math.min(sized.asked, floordiv(sized.T, 2));
  let binding = byState <= byKv ? "state" : "kv";
  if (limit < Math.min(byState, byKv) || (binding === "state" && sized.limitIsSlots)) { binding = "limit"; }
  if (L > c.context) { return { byState, byKv, limit, binding: "context", atOnce: 0 }; }
  return { byState, byKv, limit, binding, atOnce: Math.min(byState, byKv, sized.R) };
}

// r*, and the slots that pin a concurrency (formulas/balance.py, formulas/slots.py).
function balancedRatio(e, c, L) {
  return (e.S + e.draftStates) * e.state / (L * (e.kv / c.dcp + e.draftKv));
}
function balancedRequests(e, c, gib, L) {
  const each = (e.S + e.draftStates) * e.state + L * (e.kv / c.dcp + e.draftKv);
  return Math.max(0, Math.floor((Math.trunc(gib * GIB) - e.state) / each));
}
function pinnedSlots(concurrency, e, c) { return c.dp * (Math.ceil(concurrency / c.dp) * e.S + 1); }

// Blocks of one vLLM group that a request of L tokens holds (engines/vllm/pages.py blocks_held).
function blocksHeld(group, e, L) {
  if (group.kind === "state") {
    if (e.mode === "all") { return Math.ceil(L / group.block) + e.drafts; }
    return (e.mode === "align" ? 2 + e.checkpoints : 1) + e.drafts;
  }
  if (group.kind === "index tail") { return 1; }
  if (group.kind === "sliding window") { return Math.ceil(Math.min(e.window - 1 + e.inFlight, L) / group.block) + 1; }
  return Math.ceil(Math.ceil(L / e.dcp) / group.block);
}
function blocksAt(e, L) { return e.groups.reduce((sum, group) => sum + blocksHeld(group, e, L), 0); }

// Blocks of one vLLM GPU, and what runs at once (engines/vllm/planner.py size, figures.py running).
function vllmServe(e, c, gib, seqs, L) {
  if (e.refused) { throw new Refused(e.refused); }
  const available = Math.trunc(gib * GIB);
  const blocks = c.override || floordiv(Math.max(0, available), e.perBlock);
  const usable = (c.override ? c.override * e.perBlock : available) - (c.nullReserved ? e.perBlock : 0);
  const perRequest = blocksAt(e, e.length);
  if (usable <= 0) { throw new Refused("no memory for the cache"); }
  if (perRequest * e.perBlock > usable) {
    throw new Refused(`one request of ${e.length.toLocaleString("en")} tokens (max_model_len) does not fit`);
  }
  if (e.seqsChecked && seqs > blocks) {
    throw new Refused(`max_num_seqs ${seqs.toLocaleString("en")} exceeds the ${blocks.toLocaleString("en")} blocks`);
  }
  const each = blocksAt(e, L);
  if (L > e.length) { return { blocks, perRequest, each, fits: 0, atOnce: 0, binding: "context" }; }
  const fits = floordiv(Math.max(0, blocks - 1), each);
  return { blocks, perRequest, each, fits, atOnce: Math.min(fits, seqs), binding: seqs < fits ? "limit" : "blocks" };
}
