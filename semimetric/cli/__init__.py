"""The command-line front door."""
