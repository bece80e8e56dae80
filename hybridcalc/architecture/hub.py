"""A model of the Hugging Face Hub by its id: its config, its index, the headers of its tensors. No weights.

    hybridcalc weights org/name --download            or HYBRIDCALC_DOWNLOAD=1

Through huggingface_hub (extra ``hub``), so that HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count; files land in
its cache, where later commands find them. Bounded: three small files, and headers where no index states a size, each
with a timeout, and all within a minute.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from hybridcalc.errors import HybridcalcError, InputError, ModelNotFound, printable

WANTED = "HYBRIDCALC_DOWNLOAD"
"""The environment variable that allows downloads; --download sets it."""
ID = re.compile(r"[A-Za-z0-9_.\-]{1,96}/[A-Za-z0-9_.\-]{1,96}")
TIMEOUT_SECONDS = 10.0
MOST_BYTES = {"config.json": 8 * 2**20, "hf_quant_config.json": 8 * 2**20, "model.safetensors.index.json": 64 * 2**20}
SINGLE_FILE = "model.safetensors"
MOST_SECONDS, MOST_HEADERS = 60.0, 64
"""For all of it, however slowly a server answers; files of a checkpoint whose headers are asked for."""


def wanted() -> bool:
    """Whether models may be fetched."""
    return os.environ.get(WANTED, "").strip().lower() in ("1", "true", "yes", "on")


def fetch(name: str) -> tuple[Path, dict[str, Any]]:
    """The config.json of a model, fetched with what lies beside it, and sizes by headers where no index states them.

    Raises InputError without huggingface_hub, and for a Hub that cannot be reached or does not have it, with the
    command to run by hand.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        hub: Any = import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise InputError("--download needs huggingface_hub", fix="pip install 'hybridcalc[hub]'") from None
    done: list[tuple[Path, dict[str, Any]] | HybridcalcError] = []
    worker = Thread(target=_fetch_into, args=(done, hub, name), daemon=True)
    worker.start()
    worker.join(MOST_SECONDS)
    if not done:
        raise ModelNotFound(
            f"{name} cannot be fetched: not all there after {MOST_SECONDS:.0f} seconds", fix=_by_hand(name)
        )
    if isinstance(done[0], HybridcalcError):
        raise done[0]
    return done[0]


def _fetch_into(done: list[tuple[Path, dict[str, Any]] | HybridcalcError], hub: Any, name: str) -> None:
    """What `fetch` answers, or the error it raises, as the only item of a list."""
    of_http = tuple(kind for kind in _errors().HfHubHTTPError.__mro__ if kind not in (Exception, BaseException, object))
    try:
        done.append(_fetch(hub, name))
    except HybridcalcError as error:
        done.append(error)
    except (OSError, ValueError, *of_http) as failure:  # whichever HTTP library it stands on
        done.append(ModelNotFound(f"{name} cannot be fetched: {_said(failure)}", fix=_by_hand(name)))


def _fetch(hub: Any, name: str) -> tuple[Path, dict[str, Any]]:
    config = _file(hub, name, "config.json")
    if config is None:
        raise ModelNotFound(f"{name} has no config.json on the Hub", fix="give a config.json or its folder")
    index = [_file(hub, name, other) for other in MOST_BYTES if other != "config.json"][-1]
    if index is None:
        return config, _by_headers(hub, name, [SINGLE_FILE])
    from hybridcalc.architecture.safetensors import files_in, parse_index

    listed = parse_index(index.read_bytes(), f"{index.name} of {name}")
    files = sorted(files_in(listed) or ())
    stated = listed["total"] is not None or len(files) > MOST_HEADERS
    return config, {} if stated else _by_headers(hub, name, files)


def _by_hand(name: str) -> str:
    return f"by hand: hf download {name} --include '*.json', then name its folder"


def _said(failure: Exception) -> str:
    """What went wrong, in words; a model that wants a token says so."""
    status = getattr(getattr(failure, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub answers {status}: no such model, or it wants a token that may read it (HF_TOKEN)"
    return printable(str(failure).splitlines()[0] if str(failure) else type(failure).__name__, 120)


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


def _by_headers(hub: Any, name: str, files: list[str]) -> dict[str, Any]:
    """Sizes by the headers of safetensors files, read by range requests; none where a file or header is not there."""
    if _offline() or not files:
        return {}
    taken = 0
    try:
        for file in files:
            header = hub.HfApi().parse_safetensors_file_metadata(name, file, timeout=TIMEOUT_SECONDS)
            taken += sum(tensor.data_offsets[1] - tensor.data_offsets[0] for tensor in header.tensors.values())
    except (_errors().EntryNotFoundError, _errors().SafetensorsParsingError):
        return {}
    what = f"the header of {files[0]}" if len(files) == 1 else f"the headers of {len(files)} files"
    return {"bytes": taken, "source": f"{what} on the Hub"}
