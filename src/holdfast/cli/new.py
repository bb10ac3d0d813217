"""``holdfast new``."""

from __future__ import annotations

import keyword
import sys
from pathlib import Path
from string import Template

import holdfast
from holdfast.cli import output
from holdfast.errors import ConfigError

TEMPLATES = Path(__file__).parent / "project"
FILES = {
    "app.py.txt": "$module.py",
    "test_app.py.txt": "test_$module.py",
    "holdfast.toml.txt": "holdfast.toml",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}


def new(folder: Path, /) -> None:
    """Write a project to start from: an app with a stream, a test, settings and a README, in a new folder.

    ```
    holdfast new meters
    cd meters
    holdfast dev meters:app
    ```

    Args:
        folder: The new folder; its last part is the project's name.
    """
    name = folder.name
    module = name.replace("-", "_")
    _check(name, module)
    values = {"name": name, "module": module, "version": holdfast.__version__}
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigError(f"{folder} already exists and was not changed; choose another name")
        folder.mkdir(parents=True, exist_ok=True)
        for template, file in FILES.items():
            text = (TEMPLATES / template).read_text(encoding="utf-8")
            with (folder / Template(file).substitute(values)).open("x", encoding="utf-8") as written:
                written.write(Template(text).substitute(values))
    except OSError as error:
        raise ConfigError(f"{folder} can't be written: {error}; choose another folder") from None
    output.say(f"{folder} is written. Run it:\n\n  cd {folder}\n  holdfast dev {module}:app\n")


def _check(name: str, module: str) -> None:
    """Raise ConfigError if no app could be imported under this name."""
    if not (module.isidentifier() and module.isascii()) or keyword.iskeyword(module):
        raise ConfigError(
            f"{name!r} can't be a project's name: take letters, digits, hyphens and underscores, not"
            " beginning with a digit, and no word of Python"
        )
    if module in sys.stdlib_module_names or module in ("holdfast", "pytest"):
        raise ConfigError(f"{name!r} is the name of a module of Python or of Holdfast; choose another")
