"""Measurements of the project, each a command: `python -m benchmarks.NAME --help`."""
