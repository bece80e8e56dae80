"""Files that the package carries: compiled presets, the schema of hybridcalc.yaml, the parts of a page.

They are asked of the package's own loader, so that a checkout, an installed package and a wheel on sys.path, which is
never unpacked, have them at the same name.
"""

import pkgutil


def package_file(name: str) -> bytes:
    """The content of a file by its path inside the package, ``presets/models.json``. Raises OSError without one."""
    content = pkgutil.get_data("hybridcalc", name)
    if content is None:  # a loader that knows no files, which none that finds packages on sys.path is
        raise FileNotFoundError(name)
    return content
