"""Scripts that run inside the server, each as one atomic step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script by its ``name`` (which the meter shows), its text, and the digest by which servers know it."""

    name: str
    text: str
    sha: str

    @classmethod
    def load(cls, name: str, *shared: str) -> Script:
        """Return the script in ``name``.lua beside this file, with the functions of ``shared`` ones in
        front."""
        folder = files("holdfast.services.redis")
        text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (*shared, name))
        return cls(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
