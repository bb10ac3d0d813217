"""``holdfast config``."""

from __future__ import annotations

from cyclopts import App

from holdfast.cli import output
from holdfast.cli.options import DEFAULTS, Json, Options

app = App(name="config", help="The settings.")


@app.command
def show(*, json: Json = False, options: Options = DEFAULTS) -> None:
    """Show every setting with its value and source. Secrets are hidden.

    ```
    holdfast config show
    HOLDFAST_TTL_S=10 holdfast config show --json
    ```

    Args:
        json: Print one JSON object, settings by name.
    """
    from holdfast.config.sources import explain  # noqa: PLC0415

    settings = explain(options.load(logs=False))
    if json:
        output.json_line({name: {"value": value, "source": source} for name, value, source in settings})
    else:
        rows = [(name, _text(value), source) for name, value, source in settings]
        output.console().print(output.table("Settings", ["setting", "value", "source"], rows))


def _text(value: str | float | bool | None) -> str:
    """Return a value as in a config file."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
