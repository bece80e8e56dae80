"""What does an hour of a GPU cost: --price and --prices, of `fit` and `compare`."""

from collections.abc import Sequence

from hybridcalc.errors import InputError, quoted

LARGEST_PRICES = 2**20


def _text_of(path: str) -> str:
    """The text of a file of prices. Raises InputError where there is none."""
    from hybridcalc.manifests import file_bytes

    try:
        return file_bytes(path, LARGEST_PRICES).decode("utf-8-sig", "replace")
    except (OSError, InputError) as error:
        why = error.message if isinstance(error, InputError) else (error.strerror or "it cannot be read").lower()
        raise InputError(f"--prices {quoted(path)}: {why}", fix="name a text file, one GPU=PRICE a line") from None


def prices_of(said: Sequence[str], path: str | None = None) -> dict[str, float]:
    """GPU -> price an hour, of the file of --prices at ``path`` and of --price as ``said``. Raises InputError."""
    pairs: list[tuple[str, str]] = []
    if path is not None:
        for number, line in enumerate(_text_of(path).splitlines(), 1):
            if plain := line.partition("#")[0].strip():
                pairs.append((plain, f"{path[:60]}:{number}"))
    pairs += [(part.strip(), "--price") for text in said for part in text.split(",") if part.strip()]
    found, read_in = dict[str, float](), dict[str, str]()
    for pair, where in pairs:
        name, equals, price = pair.replace(":", "=", 1).partition("=") if "=" not in pair else pair.partition("=")
        try:
            value = float(price)
        except ValueError:
            value = -1.0
        if not equals or not name.strip() or not 0 < value < 1e6:
            raise InputError(f"{where}: {quoted(pair)} is not GPU=PRICE", fix="write h100=2.49")
        name, source = name.strip(), where.rpartition(":")[0]
        if name in found and source == read_in[name] and value != found[name]:
            raise InputError(f"{where}: {quoted(name)} has two prices", fix="keep one")
        found[name], read_in[name] = value, source
    if path is not None and not found:
        raise InputError(f"--prices {quoted(path)} has no price in it", fix="write one GPU=PRICE a line")
    return found
