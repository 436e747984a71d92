"""HEIC, the format of telephones, which pillow reads with the package pillow-heif."""

from __future__ import annotations

from importlib.util import find_spec

from semimetric.core.extras import import_extra

HEIC_SUFFIXES = (".heic", ".heif")
NEEDS_EXTRA = "HEIC needs the extra heic: pip install 'semimetric[heic]'"


def reads_heic() -> bool:
    """Whether the package that reads HEIC is installed."""
    return find_spec("pillow_heif") is not None


def teach_pillow_heic() -> None:
    """Let pillow open HEIC files; to do it twice does no harm."""
    import_extra("pillow_heif", "heic", "a photograph in HEIC").register_heif_opener()
