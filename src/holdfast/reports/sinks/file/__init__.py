"""Destinations that are folders of this machine."""
