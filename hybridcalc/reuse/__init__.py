"""How many requests does a prefix cache of N state slots spare? A simulation of it, at checkpoint granularity.

requests.py    what the cache sees: tokens as runs that requests share
workloads.py   synthetic workloads, streamed     mixtures.py   several at once
traces.py      recorded ones     reading.py   files as streams     forms.py   what an object of them says
policy.py      where an engine saves states, and what it keeps
tree.py        the radix tree of KV, whose nodes may hold a state
cache.py       slots, least recently used lists, locks    block_pool.py  states and KV in one pool
tiers.py       a host tier of two pools    hosts.py  how large host pools are
simulation.py  requests through a cache, counted
knee.py        how many slots a workload wants    what_if.py   what another setting would change
machines.py    which GPUs hold it    pictures.py  what it looks like    play.py  what a page tries
"""
