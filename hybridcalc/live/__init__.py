"""Figures of servers that run: what binds now, what a request really holds, and what to set.

scrape.py    files and URLs -> samples, in bounded time and memory
sglang.py vllm.py llamacpp.py    samples -> `Worker`, the names of each engine's metrics
verdict.py   workers -> which pool binds, findings, suggestions by the engine's planner
held.py      workers -> whether they are as a plan has them
watch.py     many scrapes -> the share of time that each pool bound
alerts.py    rules for Prometheus and a dashboard for Grafana that say the same
"""
