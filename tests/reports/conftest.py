"""A browser, for the pages of reports."""

from tests.console.chromium import chromium

__all__ = ["chromium"]
