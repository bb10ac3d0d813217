"""The command ``holdfast``, also as ``python -m holdfast``."""

import gc


def main() -> None:
    """The entry point. What imports make is no garbage: to look for some in it takes a fifth of the start."""
    gc.disable()
    from holdfast.cli import main as command  # noqa: PLC0415 - after the line above

    gc.freeze()
    gc.enable()
    command()


if __name__ == "__main__":
    main()
