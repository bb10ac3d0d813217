"""Logins for registries, from where Docker and podman keep them."""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.errors import ConfigError

HELPER_TIMEOUT_S = 30.0
DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io")
_TOKEN_USER = "<token>"  # noqa: S105 # as helpers mark an identity token


@dataclass(frozen=True)
class RegistryLogin:
    """A user and password, or an identity token, which is exchanged for others."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


class _Entry(msgspec.Struct, frozen=True):
    """An entry for one registry in a file of credentials."""

    identitytoken: str | None = None
    auth: str | None = None
    username: str | None = None
    password: str | None = None


class _Kept(msgspec.Struct, frozen=True):
    """As much of a file of Docker or podman as is looked at."""

    auths: dict[str, _Entry] | None = None
    helpers: dict[str, str] | None = msgspec.field(default=None, name="credHelpers")
    store: str | None = msgspec.field(default=None, name="credsStore")


class _Told(msgspec.Struct, frozen=True, rename="pascal"):
    """The output of a credential helper."""

    username: str
    secret: str


def find(registry: str, repository: str) -> RegistryLogin | None:
    """Return the credentials for a repository; None if none are kept. Raises ConfigError for a file or a
    helper that can't be used."""
    for path in _files():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}, where credentials are kept, can't be read: {error}") from None
        if (found := _in_file(kept, registry, repository, path)) is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    """Yield the paths where credentials may be, as podman and Docker look for them."""
    if told := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(told)
        return
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    configs = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    yield configs / "containers/auth.json"
    yield Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


def _in_file(kept: _Kept, registry: str, repository: str, path: Path) -> RegistryLogin | None:
    hosts = DOCKER_HUB_KEYS if registry in DOCKER_HUB_KEYS else (registry,)
    helpers = kept.helpers or {}
    for host in hosts:
        if (helper := helpers.get(host)) and (found := _ask(helper, host, path)):
            return found
    auths = kept.auths or {}
    for key in _keys(hosts, repository):
        for form in (key, f"https://{key}", f"https://{key}/v1/", f"https://{key}/v2/"):
            if (entry := auths.get(form)) and (found := _of_entry(entry, form, path)):
                return found
    if kept.store:
        for host in hosts:
            if found := _ask(kept.store, host, path):
                return found
    return None


def _keys(hosts: tuple[str, ...], repository: str) -> Iterator[str]:
    """Names that credentials may have: those of the repository, of its folders, then of the registry."""
    parts = repository.split("/")
    for end in range(len(parts), 0, -1):
        yield from (f"{host}/{'/'.join(parts[:end])}" for host in hosts)
    yield from hosts


def _of_entry(entry: _Entry, name: str, path: Path) -> RegistryLogin | None:
    if entry.identitytoken:
        return RegistryLogin(identity_token=entry.identitytoken)
    if entry.auth:
        try:
            user, _, password = base64.b64decode(entry.auth).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise ConfigError(f"the credentials for {name} in {path} are damaged: log in again") from None
        return RegistryLogin(user, password.rstrip("\0"))
    if entry.username:
        return RegistryLogin(entry.username, entry.password or "")
    return None


def _ask(helper: str, host: str, path: Path) -> RegistryLogin | None:
    """Ask a program for a login, as Docker's helpers speak. Returns None if it knows nothing of the host.
    Raises ConfigError if it can't be used."""
    program = f"docker-credential-{helper}"
    try:
        result = subprocess.run(  # noqa: S603 # the user's own config names it
            [program, "get"],
            input=host,
            capture_output=True,
            text=True,
            timeout=HELPER_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(f"{path} names {program} for {host}, and there is no such program") from None
    except OSError as error:
        raise ConfigError(f"{path} names {program} for {host}, which can't be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} told nothing of {host} within {HELPER_TIMEOUT_S:g} s") from None
    if result.returncode:
        if "not found" in result.stdout + result.stderr:
            return None
        raise ConfigError(f"{program} failed for {host}: {(result.stderr or result.stdout).strip()}")
    try:
        told = msgspec.json.decode(result.stdout, type=_Told)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{program} told nothing that can be read of {host}: {error}") from None
    if told.username == _TOKEN_USER:
        return RegistryLogin(identity_token=told.secret)
    return RegistryLogin(told.username, told.secret)
