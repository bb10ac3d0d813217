"""The command ``holdfast``, also as ``python -m holdfast``."""

import gc
import os
import signal


def main() -> None:
    """The entry point. Garbage collection is off during imports: they make no garbage, and a collection costs
    a fifth of the start."""
    if os.getpid() == 1:  # in a container: SIGTERM does nothing to process 1 before it is handled
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    gc.disable()
    from holdfast.cli import main as command  # noqa: PLC0415 - after the line above

    gc.freeze()
    gc.enable()
    command()


if __name__ == "__main__":
    main()
