"""Translation of a server's error replies into Holdfast's errors. A call that got one changed nothing."""

from __future__ import annotations

import re

from redis.asyncio.connection import DefaultParser
from redis.exceptions import ResponseError

from holdfast.errors import ConfigError, HoldfastError, OperationRefused, Unavailable

_WRAPPED = re.compile(r"-([A-Z]{3,}) (.*)", re.DOTALL)

_UNAVAILABLE = {
    "LOADING": "it is still loading its data",
    "BUSY": "another client's script blocks it",
    "READONLY": "it is a replica: name its master, or let Sentinel or a Cluster name it",
    "MASTERDOWN": "it is a replica that lost its master",
    "CLUSTERDOWN": "some slots of the Cluster have no master",
    "TRYAGAIN": "the Cluster is moving these keys",
    "MOVED": "the Cluster keeps pointing elsewhere",
    "ASK": "the Cluster keeps pointing elsewhere",
    "NOREPLICAS": "too few replicas follow it (min-replicas-to-write)",
    "MISCONF": "it can't save to disk and refuses writes: look at its log",
    "MAXCLIENTS": "its connections are used up: raise maxclients",
    # Memory comes back when keys go or maxmemory is raised, and nothing happened: not for ever.
    "OOM": "it is out of memory: raise maxmemory, or give the namespace a server of its own",
}
_CREDENTIALS = "write redis://USER:PASSWORD@HOST, percent-encoded"
_WRONG = {
    "NOAUTH": f"it wants a password; {_CREDENTIALS}",
    "WRONGPASS": f"user or password is wrong; {_CREDENTIALS}",
    "NOPERM": "its ACL forbids this: see docs on Redis for the rule that Holdfast's user needs",
    "WRONGTYPE": "a key of the namespace holds another program's data: choose another namespace",
    "NOCLUSTER": "it isn't a node of a Cluster: write redis://HOST",
    "NOSENTINEL": "it isn't a Sentinel: write redis://HOST, or the Sentinels' hosts and ports",
    "CROSSSLOT": "keys of one call are in several slots of the Cluster: a Holdfast error, please report it",
}
_PHRASES = {  # errors that have no code of their own in some version
    "without any password configured": "WRONGPASS",
    "invalid password": "WRONGPASS",
    "max number of clients": "MAXCLIENTS",
    "cluster support disabled": "NOCLUSTER",
    "`SENTINEL`": "NOSENTINEL",
    "'SENTINEL'": "NOSENTINEL",
    "can't run this command": "NOPERM",
    "can't access at least one of the keys": "NOPERM",
}


class RedisRefused(ResponseError):
    """An error reply, whatever its kind: ``code`` is its first word."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        code, _, text = reply.partition(" ")
        if code == "ERR":
            wrapped = _WRAPPED.search(text) if "unning script" in text else None
            if wrapped:  # how 6.2 reports an error inside a script
                code, text = wrapped[1], wrapped[2]
            else:
                code = next((known for phrase, known in _PHRASES.items() if phrase in text), code)
        self.code = code
        self.text = text

    def explain(self, what: str) -> HoldfastError:
        """Return the error for the caller of ``what``."""
        if self.code in _UNAVAILABLE:
            return Unavailable(f"{what}: {_UNAVAILABLE[self.code]} ({self.code} {self.text})")
        if self.code in _WRONG:
            return ConfigError(f"{what}: {_WRONG[self.code]} ({self.code} {self.text})")
        return OperationRefused(f"{what}: the server refuses: {self.code} {self.text}")


class Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """The library's parser, but all error replies are of one kind and none breaks the connection: the library
    takes some (LOADING, NOAUTH) for a lost connection, with the replies that follow."""

    @classmethod
    def parse_error(cls, response: str) -> RedisRefused:
        return RedisRefused(response)
