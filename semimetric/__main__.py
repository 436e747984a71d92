"""``python -m semimetric``."""

from semimetric.cli import main

main()
