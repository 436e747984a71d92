"""The memory allocator of the C library, set up for training on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_MMAP_THRESHOLD = 1 << 25  # glibc refuses more than half of a heap
KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory for the next arrays, instead of returning it to the kernel.

    By default every array of more than 128 KiB may be a mapping of its own, which the kernel fills with zeros, page by
    page. A convolutional network then spends much of its time in the kernel. Results do not change. It does nothing
    with another C library, and nothing where the environment sets the allocator (``MALLOC_...``, ``GLIBC_TUNABLES``).

    Returns
    -------
    bool
        Whether the allocator was set.
    """
    given = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if given or not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # another C library has no such name
        set_option = library.mallopt
        return bool(set_option(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD) and set_option(M_TRIM_THRESHOLD, KEPT))
    return False
