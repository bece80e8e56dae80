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

        version, empty = torch.__version__, torch.empty
except Exception as error:  # a library that is missing, built for another system, or not torch at all
    said = " ".join(str(error).split())[:160] or "it says nothing"
    named = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    raise TorchMissing(
        f"verify allocates with torch, which does not import: {named}{said}", fix="pip install 'hybridcalc[torch]'"
    ) from error

__all__ = ["TorchMissing", "torch"]
