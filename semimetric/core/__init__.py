"""Errors, checks, files, settings and registries, used by all other packages."""
