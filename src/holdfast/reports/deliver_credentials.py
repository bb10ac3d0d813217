"""Credentials by name: an order names one, and never holds a secret.

The credential ``acme`` is looked for in the given config, then in the environment variable
``HOLDFAST_CREDENTIAL_ACME``, a JSON object of texts, then in a TOML file with a table of that name, which
only its owner may read. Its fields, all optional, are the fields of :class:`Credential`.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError, InvalidMessage
from holdfast.reports.deliver_root import is_below

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PREFIX = "HOLDFAST_CREDENTIAL_"


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A credential for a customer's server, or for a source.

    ``user``, ``password``: of FTP, SFTP and HTTP. ``key``, ``passphrase``, ``known_hosts``: of SFTP, the key
    and the lines as text, or as ``file:PATH``. ``authorization``: the header of HTTP. ``root``: a URL; the
    credential opens only URLs below it. Without a root it opens any. The others: of S3.
    """

    user: str = ""
    password: str = ""
    key: str = ""
    passphrase: str = ""
    known_hosts: str = ""
    authorization: str = ""
    root: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    region: str = ""
    endpoint_url: str = ""

    def __repr__(self) -> str:
        return "Credential(***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    def check(self, destination: str) -> None:
        """Raise InvalidMessage for a destination that doesn't lie below the root."""
        if self.root and not is_below(destination, self.root):
            field = "delivery.destination"
            raise InvalidMessage(
                f"{field}: doesn't lie below the root of its credential, by the same scheme, host, port,"
                " options and letters, without '.', '..' and encoded slashes",
                field,
            )

    def fields(self) -> dict[str, str]:
        """Return the fields that are set."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name))}


class Credentials:
    """Finds credentials. Raises ConfigError for a malformed or unknown name, and for bad fields; the text
    holds no secret.

    Args:
        given: credentials by name, as in a config.
        file: a TOML file of more.
        environ: the environment variables; by default the process's.
    """

    def __init__(
        self,
        given: Mapping[str, Mapping[str, str]] | None = None,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._given = dict(given or {})
        self._file = file
        self._environ = os.environ if environ is None else environ

    def find(self, name: str) -> Credential:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:64]!r} can't be a credential's name: use letters, digits, '_', '-' and '.'"
            )
        variable = PREFIX + re.sub("[-.]", "_", name).upper()
        if name in self._given:
            return self._read(name, self._given[name], "the config")
        if variable in self._environ:
            return self._read(name, self._json(name, variable), variable)
        if self._file is not None and name in (tables := self._tables(self._file)):
            return self._read(name, tables[name], str(self._file))
        where = f"the config, the environment ({variable})" + (f" or {self._file}" if self._file else "")
        raise ConfigError(f"no credential {name!r} in {where}: add it")

    def fields(self, name: str) -> dict[str, str]:
        """Return the fields of a credential that are set."""
        return self.find(name).fields()

    def _json(self, name: str, variable: str) -> object:
        try:
            return msgspec.json.decode(self._environ[variable])
        except msgspec.DecodeError:
            raise ConfigError(f"{variable}, the credential {name!r}, isn't a JSON object") from None

    def _tables(self, file: Path) -> Mapping[str, object]:
        try:
            if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(f"{file} holds secrets that others may read: chmod 600 {file}")
            return tomllib.loads(file.read_text())
        except OSError as error:
            raise ConfigError(f"the credentials file {file} can't be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            raise ConfigError(f"the credentials file {file} isn't TOML") from None

    def _read(self, name: str, fields: object, where: str) -> Credential:
        try:
            found = msgspec.convert(fields, Credential)
        except msgspec.ValidationError as error:
            # msgspec's text names fields and types, never values.
            raise ConfigError(f"the credential {name!r} in {where} is invalid: {error}") from None
        texts = {field: _text(name, getattr(found, field)) for field in ("key", "known_hosts")}
        return msgspec.structs.replace(found, **texts)


def _text(name: str, value: str) -> str:
    if not value.startswith("file:"):
        return value
    path = Path(value.removeprefix("file:")).expanduser()
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the credential {name!r} names {path}, which can't be read: {error}") from None
