"""The formulas against real memory: allocate every tensor of a plan, and read what torch says it took.

The only package that imports torch, and only in backend.py; everything else takes it from there. tensors.py,
sglang_tensors.py, vllm_tensors.py and caching_allocator.py do without it.
"""
