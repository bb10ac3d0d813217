"""Commands run in an empty project."""

from tests.command_line import arrange, database, holdfast, place  # noqa: F401 (for pytest to find)
