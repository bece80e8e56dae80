"""A third engine, as small as one can be: a state takes a block of its own, KV takes the others.

It lies in one package with the file names of every engine, and is known by one row (test_third_engine.py). What it has
no module for (crossovers, sweeps, tensors, reuse, words and pictures of its own) it does not offer.
"""
