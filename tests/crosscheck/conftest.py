"""One thread for torch: tests run several to a machine, and their tensors are small."""

from hybridcalc.crosscheck.backend import torch

torch.set_num_threads(1)
