"""Errors, checks, files and settings: what every room may use."""
