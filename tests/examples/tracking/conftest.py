"""The demo runs in an empty directory; its scores are compared with those of a tracking library."""

from tests.command_line import place
from tests.vision.conftest import grey, peer

__all__ = ["grey", "peer", "place"]
