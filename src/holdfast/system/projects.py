"""The files and folders in a project's folder that don't belong to the project."""

from __future__ import annotations

ENVIRONMENT = "pyvenv.cfg"
"""The file that makes a folder a virtual environment."""

_OF_TOOLS = ("__pycache__", "node_modules")


def passed_over(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or a folder that tools fill."""
    return name.startswith(".") or name in _OF_TOOLS
