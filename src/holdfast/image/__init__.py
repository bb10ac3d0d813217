"""Builds container images of apps, without a daemon and without a Dockerfile, and pushes them to registries.

No node needs any of this: only ``holdfast image`` imports it.
"""
