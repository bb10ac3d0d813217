"""Logins for registries, from the files and helpers of Docker and podman."""

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
_TOKEN_USER = "<token>"  # noqa: S105 # the user of an identity token in a helper's output


@dataclass(frozen=True)
class RegistryLogin:
    """A user and password, or an identity token, which is exchanged for other tokens."""

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


class _CredentialFile(msgspec.Struct, frozen=True):
    """The credential entries of a Docker or podman config file."""

    auths: dict[str, _Entry] | None = None
    helpers: dict[str, str] | None = msgspec.field(default=None, name="credHelpers")
    store: str | None = msgspec.field(default=None, name="credsStore")


class _HelperAnswer(msgspec.Struct, frozen=True, rename="pascal"):
    """The output of a credential helper."""

    username: str
    secret: str


def find(registry: str, repository: str) -> RegistryLogin | None:
    """Return the login for a repository, or None. Raises ConfigError for an unusable file or helper."""
    for path in _files():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_CredentialFile)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}, a file of credentials, can't be read: {error}") from None
        if (found := _in_file(kept, registry, repository, path)) is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    """Yield the possible files of credentials, in the order of podman and Docker."""
    if file := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(file)
        return
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    configs = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    yield configs / "containers/auth.json"
    yield Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


def _in_file(kept: _CredentialFile, registry: str, repository: str, path: Path) -> RegistryLogin | None:
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
    """Yield the possible names of credentials: of the repository, of its folders, then of the registry."""
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
    """Ask a helper program of Docker for a login, and return it; None for an unknown host. Raises ConfigError
    if the program fails."""
    program = f"docker-credential-{helper}"
    try:
        result = subprocess.run(  # noqa: S603 # named by the user's own config
            [program, "get"],
            input=host,
            capture_output=True,
            text=True,
            timeout=HELPER_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(f"{path} names {program} for {host}, which isn't installed") from None
    except OSError as error:
        raise ConfigError(f"{path} names {program} for {host}, which can't be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} didn't answer for {host} within {HELPER_TIMEOUT_S:g} s") from None
    if result.returncode:
        if "not found" in result.stdout + result.stderr:
            return None
        raise ConfigError(f"{program} failed for {host}: {(result.stderr or result.stdout).strip()}")
    try:
        answer = msgspec.json.decode(result.stdout, type=_HelperAnswer)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{program} has an unreadable answer for {host}: {error}") from None
    if answer.username == _TOKEN_USER:
        return RegistryLogin(identity_token=answer.secret)
    return RegistryLogin(answer.username, answer.secret)
