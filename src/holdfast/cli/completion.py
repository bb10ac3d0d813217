"""``holdfast completion``."""

from __future__ import annotations

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a script for a shell that completes commands, options, and names of streams and nodes. It has the
    installed commands: make it again after an upgrade.

    ```
    holdfast completion bash > ~/.local/share/bash-completion/completions/holdfast
    holdfast completion zsh > "${fpath[1]}/_holdfast"
    holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    ```

    Args:
        shell: The shell for the script.
    """
    from holdfast.cli import command_line  # noqa: PLC0415 - it imports this module

    sys.stdout.write(command_line().generate_completion(prog_name="holdfast", shell=shell))
