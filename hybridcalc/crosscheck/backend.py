"""torch, imported in one place: quietly, and with one line that says what to install where it is missing."""

import warnings

from hybridcalc.errors import InputError


class TorchMissing(InputError):
    """torch is not installed, or what is installed under its name does not import."""


try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns at import where numpy is missing; nothing here needs numpy
        import torch
        import torch.distributed
except ImportError as error:
    raise TorchMissing(
        f"verify allocates with torch, which does not import: {error}", fix="pip install 'hybridcalc[torch]'"
    ) from error

__all__ = ["TorchMissing", "torch"]
