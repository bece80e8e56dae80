"""What holds at every step, whatever requests start, end and are preempted: slots add up, nothing locked goes."""

from __future__ import annotations

from typing import Any

from brute_force import agreement, tokens_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from present import present
from test_brute_force import requests

from hybridcalc.formulas import Strategy
from hybridcalc.reuse.cache import NoRoom, PrefixCache
from hybridcalc.reuse.requests import Request
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.tiers import TieredCache
from hybridcalc.reuse.vllm import vllm_policy


class Serving(RuleBasedStateMachine):
    """Requests start, compute their prompt, answer, and are taken off in any order."""

    @initialize(
        kind=st.sampled_from(("extra", "lazy", "no_buffer", "align")),
        slots=st.integers(8, 14),
        int8=st.sampled_from((None, 2, 5)),
        kv=st.sampled_from((None, 60, 120)),
        host=st.sampled_from((0, 2, 6)),
        host_kv=st.sampled_from((None, 20, 90)),
        cap=st.sampled_from((-1, 1, 2)),
        grid=st.integers(1, 3),
        most_bare=st.sampled_from((0, 1, 3, 1000)),
    )
    def begin(
        self,
        kind: str,
        slots: int,
        int8: int | None,
        kv: int | None,
        host: int,
        host_kv: int | None,
        cap: int,
        grid: int,
        most_bare: int,
    ) -> None:
        if kind == "align":
            policy = vllm_policy(grid)
        elif kind == "no_buffer":
            policy = sglang_policy(Strategy.NO_BUFFER, path_cap=cap)
        else:
            strategy = Strategy.EXTRA_BUFFER if kind == "extra" else Strategy.EXTRA_BUFFER_LAZY
            policy = sglang_policy(strategy, chunk=grid, track_interval=grid, path_cap=cap)
        given: dict[str, Any] = {"checkpoint_slots": int8, "count_running": True, "kv_tokens": kv}
        self.cache: PrefixCache
        if host and kind != "align":
            self.cache = TieredCache(policy, slots, **given, host_slots=host, host_kv_tokens=host_kv)
        else:
            self.cache = PrefixCache(policy, slots, **given)
        self.cache.most_bare = most_bare
        self.started: list[Any] = []
        self.runs: list[Any] = []
        self.seen: list[Any] = []

    @rule(request=requests(longest=5))
    def start(self, request: Request) -> None:
        before = self._held()
        try:
            run = self.cache.start(request)
        except NoRoom:
            assert (self.cache.own, self.cache.private) == before[:2]
            assert self.runs or self.started or self._is_large(request)
            return
        tokens = tokens_of(request)
        shared = max((agreement(tokens, other) for other in self.seen), default=0)
        assert run.hit <= min(shared, request.prompt - 1)
        self.seen.append(tokens)
        self.started.append(run)

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def prefill(self, data: st.DataObject) -> None:
        run = self.started.pop(data.draw(st.integers(0, len(self.started) - 1)))
        self.cache.prefill(run)
        self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        run = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
        try:
            self.cache.finish(run)
        except NoRoom:
            self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule()
    def preempt(self) -> None:
        self.cache.preempt(self.runs.pop())

    @invariant()
    def slots_add_up(self) -> None:
        cache = self.cache
        own = sum(run.own for run in self.started + self.runs)
        assert cache.own == own
        assert len(cache.states) + (own if cache.shared else 0) + cache.free == cache.capacity
        assert cache.free >= 0
        assert own <= cache.slots

    @invariant()
    def states_lie_on_paths_of_the_tree(self) -> None:
        nodes = set(self.cache.tree.nodes())
        assert {node for node in nodes if node.state} == set(self.cache.states)
        for node in nodes:
            assert present(node.parent).child(node.key) is node
            assert present(node.parent).depth < node.depth <= node.ends[-1]

    @invariant()
    def what_the_host_holds_adds_up(self) -> None:
        """Every node is on one side at least, with all above it; ends that the host alone holds are known."""
        cache, nodes = self.cache, list(self.cache.tree.nodes())
        if not isinstance(cache, TieredCache):
            assert not any(node.host or node.kept or node.gone for node in nodes)
            return
        assert {node for node in nodes if node.host and not node.state} == set(cache.host_only)
        assert sum(node.host for node in nodes) == cache.host_states <= cache.host_slots
        assert sum(node.tokens for node in nodes if node.kept) == cache.host_kv
        assert sum(node.tokens for node in nodes if node.gone) == cache.gone_tokens
        assert cache.host_kv_tokens is None or cache.host_kv <= cache.host_kv_tokens
        assert set(cache.used) <= set(nodes) | {cache.tree.root}
        for node in nodes:
            above = present(node.parent)
            assert node.kept or not (node.gone or node.host)
            assert node.gone or not above.gone
            assert above.parent is None or above.kept or not node.kept
            assert not (node.gone and node.state)
        ends = {node for node in nodes if node.gone and not node.children and not node.users}
        assert ends <= {node for _, _, node in cache.ends}
        assert not any(node.gone and node.users for node in nodes)

    @invariant()
    def leaves_without_a_state_are_bounded(self) -> None:
        cache = self.cache
        bare = {n for n in cache.tree.nodes() if not (n.state or n.host or n.children or n.users)}
        if cache.kv_tokens is None:
            assert bare <= set(cache.bare)
            assert len(cache.bare) <= cache.most_bare
            assert all(node.parent is not None for node in cache.bare)
        elif not isinstance(cache, TieredCache):
            assert not cache.bare

    @invariant()
    def what_runs_is_locked_and_still_there(self) -> None:
        nodes = set(self.cache.tree.nodes()) | {self.cache.tree.root}
        users = dict.fromkeys(nodes, 0)
        for run in self.started + self.runs:
            node = run.node
            assert node in nodes
            assert node.locks > 0
            while node is not None:
                users[node] += 1
                node = node.parent
        assert all(node.users == count for node, count in users.items())
        assert sum(node.locks for node in nodes) == len(self.started) + len(self.runs)

    @invariant()
    def tokens_add_up(self) -> None:
        cache = self.cache
        assert cache.tree.tokens == sum(node.tokens for node in cache.tree.nodes())
        assert cache.private == sum(run.private for run in self.started + self.runs) >= 0
        if cache.kv_tokens is not None:
            assert cache.kv_held <= cache.kv_tokens
            assert set(cache.kv_order) == {node for node in cache.tree.nodes() if not node.gone}

    @rule(request=requests(longest=3))
    def locked_states_survive_a_crowd(self, request: Request) -> None:
        """Whatever one more request evicts, the state that a running one holds is not among it."""
        held = [run.node for run in self.started + self.runs if run.node.state]
        try:
            run = self.cache.start(request)
        except NoRoom:
            return
        self.cache.prefill(run)
        assert all(node.state for node in held)
        self.cache.preempt(run)
        self.seen.append(tokens_of(request))

    def _held(self) -> tuple[int, int, int]:
        return self.cache.own, self.cache.private, len(self.cache.states)

    def _is_large(self, request: Any) -> Any:
        cache = self.cache
        return cache.kv_tokens is not None and request.prompt > cache.kv_tokens


Serving.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestServing = Serving.TestCase
