"""The loading of an app from the module that declares it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from holdfast.app.app import App
from holdfast.assembly.products import products
from holdfast.common.user_code import explain, raised_at
from holdfast.errors import ConfigError
from holdfast.streams.spec import StreamSpec


def load_app(place: str) -> App:
    """Import the app at ``module:name``. The working directory is searched too. Raises ConfigError."""
    module_name, colon, name = place.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"app {place!r} must be 'module:name', such as 'myproject.streams:app'")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_why_not_imported(place, module_name, error)) from error
    app = getattr(module, name, None)
    if app is None:
        apps = [known for known, value in vars(module).items() if isinstance(value, App)]
        hint = (
            f"did you mean '{module_name}:{apps[0]}'?"
            if apps
            else "it has no App; make one with holdfast.App(…)"
        )
        raise ConfigError(f"app {place!r}: module {module_name!r} has no {name!r}; {hint}")
    if not isinstance(app, App):
        raise ConfigError(f"app {place!r} is {type(app).__name__}, not a holdfast.App; name the App itself")
    if not (app.streams or app.tasks or of_products(app)):
        raise ConfigError(
            f"app {place!r} declares no stream, task or outbox; decorate a handler with @{name}.stream(…) or"
            f" @{name}.task(…)"
        )
    return app


def declared_stream(app: App, place: str, stream: str) -> StreamSpec:
    """Return a stream of the app at ``place``. Raises ConfigError if the app declares no such stream."""
    if stream not in app.streams:
        raise ConfigError(
            f"app {place!r} declares no stream {stream!r}; it has {', '.join(app.streams) or 'none'}"
        )
    return app.streams[stream]


def declared(app: App) -> list[str]:
    """Return the names of an app's streams, tasks and parts of products."""
    return sorted({*app.streams, *app.tasks, *of_products(app)})


def of_products(app: App) -> list[str]:
    """Return the names of an app's parts of products, such as ``outbox faces``."""
    return [each for product in products() for each in product.declared(app)]


def _why_not_imported(place: str, module_name: str, error: Exception | SystemExit) -> str:
    parents = [module_name[:end] for end, char in enumerate(f"{module_name}.") if char == "."]
    if isinstance(error, ModuleNotFoundError) and error.name in parents:
        return (
            f"app {place!r}: there is no module {error.name!r} here or in the environment;"
            f" run this in the project's directory ({Path.cwd()}), or install the project"
        )
    what = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    detail = explain(error)
    at = f"{error.filename}:{error.lineno}" if isinstance(error, SyntaxError) else raised_at(detail)
    where = f" at {at}" if at else ""
    return (
        f"app {place!r}: importing {module_name!r} failed{where}: {what}; correct the module\n"
        + detail.rstrip()
    )
