"""One thread for torch: tests run several to a machine, and their tensors are small. Without torch none run here."""

from importlib.util import find_spec

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from hybridcalc.crosscheck.backend import torch

    torch.set_num_threads(1)
