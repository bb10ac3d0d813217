"""Benchmarks: each measures Holdfast against a named peer or limit, in one run on one machine."""
