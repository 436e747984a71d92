"""``python -m semimetric``."""

from semimetric.cli.entry import main

main()
