"""A model of the Hugging Face Hub by its id: its config, its index, the headers of its tensors. No weights.

    hybridcalc weights org/name --download            or HYBRIDCALC_DOWNLOAD=1

Through huggingface_hub (extra ``hub``), so that HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count; files land in
its cache, where later commands find them. Bounded: three small files and one header, each with a timeout.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from hybridcalc.errors import InputError, ModelNotFound, printable

WANTED = "HYBRIDCALC_DOWNLOAD"
"""The environment variable that allows downloads; --download sets it."""
ID = re.compile(r"[A-Za-z0-9_.\-]{1,96}/[A-Za-z0-9_.\-]{1,96}")
TIMEOUT_SECONDS = 10.0
MOST_BYTES = {"config.json": 8 * 2**20, "hf_quant_config.json": 8 * 2**20, "model.safetensors.index.json": 64 * 2**20}
SINGLE_FILE = "model.safetensors"


def wanted() -> bool:
    """Whether models may be fetched."""
    return os.environ.get(WANTED, "").strip().lower() in ("1", "true", "yes", "on")


def fetch(name: str) -> tuple[Path, dict[str, Any]]:
    """The config.json of a model, fetched with what lies beside it, and the sizes of its single file of tensors.

    Raises InputError without huggingface_hub, and for a Hub that cannot be reached or does not have it, with the
    command to run by hand.
    """
    by_hand = f"by hand: hf download {name} --include '*.json', then name its folder"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        hub: Any = import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise InputError("--download needs huggingface_hub", fix="pip install 'hybridcalc[hub]'") from None
    of_http = tuple(kind for kind in _errors().HfHubHTTPError.__mro__ if kind not in (Exception, BaseException, object))
    failures = (OSError, ValueError, *of_http)  # whichever HTTP library it stands on
    try:
        config = _file(hub, name, "config.json")
        if config is None:
            raise ModelNotFound(f"{name} has no config.json on the Hub", fix="give a config.json or its folder")
        index = [_file(hub, name, other) for other in MOST_BYTES if other != "config.json"][-1]
        sizes = {} if index is not None else _single_file(hub, name)
    except failures as failure:
        said = printable(str(failure).splitlines()[0] if str(failure) else type(failure).__name__, 120)
        raise ModelNotFound(f"{name} cannot be fetched: {said}", fix=by_hand) from None
    return config, sizes


def _errors() -> Any:
    return import_module("huggingface_hub.errors")


def _offline() -> bool:
    found: bool = import_module("huggingface_hub.constants").HF_HUB_OFFLINE
    return found


def _file(hub: Any, name: str, file: str) -> Path | None:
    """A file of a model in the cache; None where the model has none of that name. Raises InputError for a large one."""
    try:
        if not _offline():
            size = hub.get_hf_file_metadata(hub.hf_hub_url(name, file), timeout=TIMEOUT_SECONDS).size
            if size is not None and size > MOST_BYTES[file]:
                raise InputError(f"{file} of {name} is larger than {MOST_BYTES[file] // 2**20} MiB")
        return Path(hub.hf_hub_download(name, file, etag_timeout=TIMEOUT_SECONDS))
    except _errors().LocalEntryNotFoundError:
        raise
    except _errors().EntryNotFoundError:
        return None


def _single_file(hub: Any, name: str) -> dict[str, Any]:
    """Sizes by the header of a model's one safetensors file, read by range requests; none where it has no such file."""
    if _offline():
        return {}
    try:
        header = hub.HfApi().parse_safetensors_file_metadata(name, SINGLE_FILE, timeout=TIMEOUT_SECONDS)
    except (_errors().EntryNotFoundError, _errors().SafetensorsParsingError):
        return {}
    taken = [tensor.data_offsets[1] - tensor.data_offsets[0] for tensor in header.tensors.values()]
    return {"bytes": sum(taken), "source": f"the header of {SINGLE_FILE} on the Hub"}
