"""``python -m semimetric``."""

from semimetric.cli.main import main

main()
