"""Credentials by name."""

import re
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from holdfast.errors import ConfigError
from holdfast.reports.deliver_credentials import Credential, Credentials

SECRET = "s3cr3t-value"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials.toml"
    path.write_text(f'[acme]\nuser = "file"\npassword = "{SECRET}"\n[both]\nuser = "file"\n')
    path.chmod(0o600)
    return path


def test_credentials_are_found_in_config_environment_and_file(file: Path) -> None:
    environ = {"HOLDFAST_CREDENTIAL_BOTH": '{"user": "environment"}', "HOLDFAST_CREDENTIAL_A_B": "{}"}
    found = Credentials({"given": {"user": "config"}}, file, environ)
    assert found.find("given").user == "config"
    assert found.find("both").user == "environment"
    assert found.find("acme") == Credential("file", SECRET)
    assert found.find("a-b") == Credential()
    assert found.find("acme").fields() == {"user": "file", "password": SECRET}


@pytest.mark.parametrize("name", ["", "../acme", "a b", "a\n", "x" * 65, "-a"])
def test_a_credential_with_an_odd_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="can't be a credential's name"):
        Credentials(environ={}).find(name)


def test_a_missing_credential_names_where_to_put_it(file: Path) -> None:
    with pytest.raises(ConfigError, match=rf"HOLDFAST_CREDENTIAL_NONE\) or {re.escape(str(file))}"):
        Credentials(None, file, {}).find("none")


@pytest.mark.parametrize(
    "value", [SECRET, f'["{SECRET}"]', f'{{"pass": "{SECRET}"}}', f'{{"password": ["{SECRET}"]}}']
)
def test_what_is_wrong_is_said_without_the_secret(value: str) -> None:
    with pytest.raises(ConfigError, match="acme") as caught:
        Credentials(environ={"HOLDFAST_CREDENTIAL_ACME": value}).find("acme")
    assert SECRET not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        Credentials(None, file, {}).find("acme")


def test_a_wrong_credential_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        Credentials(None, tmp_path / "none", {}).find("acme")
    odd = tmp_path / "odd"
    odd.write_bytes(b"\xff" + SECRET.encode())
    odd.chmod(0o600)
    with pytest.raises(ConfigError, match="isn't TOML") as caught:
        Credentials(None, odd, {}).find("acme")
    assert SECRET not in str(caught.value)


def test_a_field_of_credentials_may_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("PRIVATE")
    found = Credentials({"a": {"key": f"file:{tmp_path}/key"}, "b": {"key": "file:/none"}}, environ={})
    assert found.find("a").key == "PRIVATE"
    with pytest.raises(ConfigError, match="/none"):
        found.find("b")


def test_credentials_never_show_their_password_as_text() -> None:
    assert SECRET not in repr(Credential("ann", SECRET))
    assert SECRET not in f"{Credential(password=SECRET)}"
    assert SECRET not in pretty_repr([Credential(password=SECRET)])
