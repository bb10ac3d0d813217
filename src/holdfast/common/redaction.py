"""Redaction: secrets in texts are found by their form and hidden.

Libraries, services and users' handlers may put secrets into errors. All texts that are logged, stored or
answered pass through here. In doubt, a part is hidden.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

HIDDEN = "***"

LENGTH_MAX = 64 * 1024
"""Maximum characters that are read: half at the beginning and half at the end, where a traceback has its
error. The rest is hidden."""

_TELLTALE = (
    r"passw(?:or)?d|passphrase|secret|token|credential|authorization|cookie|signature|api[_-]?key"
    r"|access[_-]?key|private[_-]?key|(?<![a-z])(?:pwd|pass|auth|sig)(?![a-z])"
)
_NAME = re.compile(_TELLTALE, re.IGNORECASE)
_PROSE = r"(?:credential|(?<![a-z])(?:pass|auth|sig)(?![a-z]))[\w.-]{0,64}[^\S\n]*:"
"""Names of secrets that, before a colon, may also be words of a sentence."""

_SCHEME = r"[a-z][a-z0-9+.-]{0,40}://"
_USER = re.compile(rf"({_SCHEME})([^/:\[\]\n]{{0,200}}):", re.IGNORECASE)
_URL = re.compile(_SCHEME, re.IGNORECASE)
_PORT = re.compile(r"\d{1,5}(?=[\s/?#,;:.!'\"`<>()\[\]{}|\\]|$)")
_ENDED_BY_SLASH = ("http://", "https://", "ws://", "wss://", "ftp://", "ftps://", "ftpes://", "sftp://")
"""Schemes of URLs with ports whose parsers end a password at a slash, so ``:80/a@b`` holds no password."""

_PARAMETER = re.compile(r"([?&;])([^=&;\s]{1,200})=([^&\s]*)")
_QUOTED = r"(?P<quote>\\?[\"'])(?:(?!(?P=quote))(?:\\\\\\.|\\.|[^\n]))*(?:(?P=quote)|$)"
"""Texts in quotes, escaped once, or twice as in JSON inside JSON; up to the end of the line if they are cut
off."""
_OWN = r"(?![^\S\n]*Bearer (?:KEY|TOKEN)(?!\S))"
"""Excludes the values in Holdfast's own advice about a header."""

_OWN_LOGIN = "PASSWORD@HOST"
"""Holdfast's own advice about the form of a URL."""

_FIELD = re.compile(
    rf"(?!{_PROSE})(?P<name>{_TELLTALE})"
    rf"(?P<mark>[\w.-]{{0,64}}(?:\\?[\"'])?[^\S\n]*[:=]{_OWN}[^\S\n]*(?:b(?=[\"']))?)"
    rf"(?P<value>{_QUOTED}|[^\s&]+)",
    re.IGNORECASE | re.MULTILINE,
)
_HEADER = re.compile(
    rf"((?:authorization|cookie)\\?[\"']?[^\S\n]*[:=]{_OWN}[^\S\n]*)(?P<value>{_QUOTED}|[^\n]+)",
    re.IGNORECASE | re.MULTILINE,
)
"""A header may hold secrets up to the end of its line: ``Authorization: Digest username="a",
response="b"``."""

_ELEMENT = re.compile(rf"(<[\w:.-]{{0,64}}(?:{_TELLTALE})[\w:.-]{{0,64}}>)[^<]*", re.IGNORECASE)
_LOGIN = re.compile(r"\b(Bearer|Basic)\s+(?!TOKEN\b)(?=\S*[\d=+/.~-]|\S+[A-Z])[\w.~+/=-]{4,}")
_WEB_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")
_SIGNING_KEY = re.compile(r"\b(whsec|whsk)_[A-Za-z0-9+/=]+")
"""Secrets of webhooks, as Standard Webhooks writes them."""

_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_CLOSING = "'\")]},.:;>"


def is_secret(name: str) -> bool:
    """Return whether a field of that name holds a secret."""
    return _NAME.search(name) is not None


def redact(text: str) -> str:
    """Return ``text`` without passwords in URLs, without the values of parameters, fields, headers and
    elements that have names of secrets, and without tokens and private keys.

    Pass the whole text: a password that is cut off can't be recognised. A password that begins like a port,
    or with a space, and goes on after a space, is found only by ``redact_url``. Of a text longer than
    ``LENGTH_MAX``, the middle is hidden, because the time grows with the square of the length."""
    if len(text) > LENGTH_MAX:
        end = _end(text)
        return f"{redact(_beginning(text))}\n{HIDDEN}" + (f"\n{redact(end)}" if end else "")
    text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}\2", text)
    # Parameters first: the last @ may stand in one.
    text = _without_passwords(_PARAMETER.sub(_without_value, text))
    text = _HEADER.sub(lambda found: f"{found[1]}{_hidden(found)}", text)
    text = _FIELD.sub(_without_field, text)
    text = _ELEMENT.sub(rf"\1{HIDDEN}", text)
    text = _SIGNING_KEY.sub(rf"\1_{HIDDEN}", text)
    return _WEB_TOKEN.sub(HIDDEN, _LOGIN.sub(rf"\1 {HIDDEN}", text))


def _beginning(text: str) -> str:
    """Return the whole lines in the first half of ``LENGTH_MAX`` characters. Of a longer line, return the
    words before its first URL that may hold a password, whose end isn't visible."""
    kept = text[: LENGTH_MAX // 2 - 10]
    line_end = kept.rfind("\n")
    if line_end >= 0:
        return kept[:line_end]
    found = _USER.search(kept)
    words = kept[: found.start()] if found else kept
    return words[: max(words.rfind(" "), 0)]


def _end(text: str) -> str:
    """Return the whole lines in the last half of ``LENGTH_MAX`` characters, without lines of a private key or
    an element that began before them."""
    kept = text[-(LENGTH_MAX // 2 - 10) :]
    line_end = kept.find("\n")
    if line_end < 0:
        return ""
    lines = kept[line_end + 1 :]
    before = text[: len(text) - len(lines)]
    if before.rfind("-----BEGIN ") > before.rfind("-----END "):
        lines = _after_line(lines, "-----END ")
    if _ELEMENT.match(before, max(before.rfind("<"), 0)):
        lines = _after_line(lines, "<")
    return lines


def _after_line(text: str, mark: str) -> str:
    """Return what follows the first line that contains ``mark``."""
    return text.partition(mark)[2].partition("\n")[2]


def redact_url(url: str) -> str:
    """Redact a text that is only a URL. Its parts are found even if they hold characters that should have
    been percent-encoded."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return redact(url)
    scheme += mark
    place, question, query = rest.partition("?")
    pairs = (pair.partition("=") for pair in re.split("([&;])", query))
    shown = (
        f"{name}={HIDDEN}" if equals and is_secret(unquote_plus(name)) else f"{name}{equals}{value}"
        for name, equals, value in pairs
    )
    user, colon, after = f"{place}{question}{''.join(shown)}".partition(":")
    before_slash = after.partition("/")[0]
    is_port = (
        before_slash.isdecimal()
        if scheme.lower() in _ENDED_BY_SLASH
        else "@" not in after and _PORT.match(after)
    )
    if colon and not {"/", "["} & set(user) and not is_port:
        _, at, host = after.rpartition("@")
        after = f"{HIDDEN}{at}{host if at else ''}"
    return redact(f"{scheme}{user}{colon}{after}")


def unsaid_port(host: str) -> str:
    """Return a wrong ``host:port`` without its port, which may be a password whose ``@host`` is missing."""
    name, colon, port = host.partition(":")
    return host if not colon or _PORT.fullmatch(port) else f"{name}:{HIDDEN}"


def _without_passwords(text: str) -> str:
    parts, at = [], 0
    for found in _USER.finditer(text):
        if found.start() < at:
            continue
        line_end = text.find("\n", found.end())
        rest = text[found.end() : line_end if line_end >= 0 else len(text)]
        other = _URL.search(rest)
        if other is not None and "@" in rest[: other.start()]:
            rest = rest[: other.start()]
        size = _password_size(found[1].lower(), found[2], rest)
        if size:
            parts += [text[at : found.end()], HIDDEN]
            at = found.end() + size
    return "".join([*parts, text[at:]])


def _password_size(scheme: str, user: str, rest: str) -> int:
    """Return how many characters of ``rest``, which follows ``scheme://user:``, may be a password: all before
    the last ``@``."""
    if rest.startswith((f"{HIDDEN}@", _OWN_LOGIN)) or not rest or rest[0].isspace() or _is_port(scheme, rest):
        return 0
    if "@" in rest:
        return rest.rindex("@")
    if any(character.isspace() for character in user):
        return 0
    return len(rest.split(maxsplit=1)[0].rstrip(_CLOSING))


def _is_port(scheme: str, rest: str) -> bool:
    word = rest.split(maxsplit=1)[0] if rest.strip() else ""
    return _PORT.match(rest) is not None and (scheme.lower() in _ENDED_BY_SLASH or "@" not in word)


def _without_value(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    return f"{mark}{name}={HIDDEN}{_closing(value)}" if is_secret(unquote_plus(name)) else found[0]


def _without_field(found: re.Match[str]) -> str:
    return f"{found['name']}{found['mark']}{_hidden(found)}"


def _hidden(found: re.Match[str]) -> str:
    value, quote = found["value"], found["quote"] or ""
    if not quote:
        return f"{HIDDEN}{_closing(value)}"
    return f"{quote}{HIDDEN}{quote if value.endswith(quote) and value != quote else ''}"


def _closing(value: str) -> str:
    """Return the end of a value that belongs to its sentence and not to the value."""
    return value[len(value.rstrip(_CLOSING)) :]
