"""A command line in an empty project, and the services it works on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from holdfast import cli
from holdfast.config.settings import Config
from holdfast.config.sources import load
from holdfast.wiring.services import Services

T = TypeVar("T")


class Outcome(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


Holdfast = Callable[..., Outcome]
Arrange = Callable[[Callable[[Services], Awaitable[T]]], T]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment without settings."""
    monkeypatch.chdir(tmp_path)
    for name in Config.model_fields:
        monkeypatch.delenv(f"HOLDFAST_{name.upper()}", raising=False)
    return tmp_path


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Holdfast:
    """Run a command."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = cli.run(arguments)
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def arrange() -> Arrange[Any]:
    """Do something to the services of the working directory, between commands."""

    def run(work: Callable[[Services], Awaitable[T]]) -> T:
        async def with_services() -> T:
            async with Services(load()) as services:
                return await work(services)

        return asyncio.run(with_services())

    return run


@pytest.fixture
def database(arrange: Arrange[Any]) -> None:
    """The database of the working directory, as the first node makes it."""
    arrange(lambda services: services.coordinator().members())
