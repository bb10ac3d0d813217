"""Checks durability: what a server's settings put at risk, and what to set instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.errors import ConfigError, OperationRefused
from holdfast.ports.state import Risk
from holdfast.services.redis.connection import RedisConnection

OLDEST = (6, 2)

SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "min-replicas-to-write")


async def check(connection: RedisConnection) -> list[Risk]:
    """Return the risks to what every master keeps. Nothing is changed. Raises Unavailable."""
    infos = {server: _info(reply) for server, reply in await connection.everywhere("INFO")}
    settings: dict[str, dict[str, str]] = {server: {} for server in infos}
    try:
        for name in SETTINGS:
            for server, reply in await connection.everywhere("CONFIG", "GET", name):
                words = [word.decode() for word in reply]
                settings.setdefault(server, {}).update(zip(words[::2], words[1::2], strict=True))
    except (ConfigError, OperationRefused) as refusal:
        text = f"its settings can't be read, so what a crash would lose is not known ({refusal})"
        unread = Risk("", "warning", text, "allow CONFIG GET to this user, or ask its administrator")
        return [unread, *(risk for server, info in infos.items() for risk in judge_version(server, info))]
    return [risk for server, info in infos.items() for risk in judge(server, settings[server], info)]


def judge(server: str, settings: Mapping[str, str], info: Mapping[str, str]) -> list[Risk]:
    """Return the risks in a server's settings (CONFIG GET) and its description of itself (INFO)."""
    return [
        *judge_version(server, info),
        *_judge_disk(server, settings),
        *_judge_memory(server, settings),
        *_judge_replicas(server, settings, info),
    ]


def judge_version(server: str, info: Mapping[str, str]) -> list[Risk]:
    """Return the risk in a server too old; Valkey says which Redis it is like."""
    version = info.get("redis_version", "")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= OLDEST:
        return []
    text = f"Redis {version or 'of unknown version'} lacks commands that Holdfast needs"
    return [Risk(server, "failed", text, "run Redis 6.2 or newer, or Valkey")]


def _judge_disk(server: str, settings: Mapping[str, str]) -> list[Risk]:
    fix = "set appendonly yes and appendfsync everysec (or always), in its configuration and by CONFIG SET"
    if settings.get("appendonly") != "yes":
        if not settings.get("save"):
            text = (
                "nothing is kept on disk: a restart loses every message and every checkpoint, and streams"
                " begin again without the messages that they had already deleted"
            )
            return [Risk(server, "failed", text, fix)]
        text = (
            f"only snapshots are kept on disk (save {settings['save']}): a crash loses what was sent and"
            " committed since the last one, and the messages of those commits are deleted"
        )
        return [Risk(server, "warning", text, fix)]
    if settings.get("appendfsync") not in ("always", "everysec"):
        text = (
            f"appendfsync is {settings.get('appendfsync', 'unknown')}: a crash of its machine loses the"
            " messages and commits of half a minute"
        )
        return [Risk(server, "warning", text, fix)]
    return []


def _judge_memory(server: str, settings: Mapping[str, str]) -> list[Risk]:
    policy, most = settings.get("maxmemory-policy", ""), settings.get("maxmemory", "0")
    if policy == "noeviction":
        return []
    fix = "set maxmemory-policy noeviction; then a full server refuses commits, and nothing is lost"
    if policy.startswith("volatile-"):
        text = f"maxmemory-policy is {policy}: a full server forgets nodes and large states under way"
        return [Risk(server, "warning", text, fix)]
    text = f"maxmemory-policy is {policy}: a full server drops checkpoints and whole queues"
    if most == "0":
        text += "; no maxmemory is set yet"
    return [Risk(server, "warning" if most == "0" else "failed", text, fix)]


def _judge_replicas(server: str, settings: Mapping[str, str], info: Mapping[str, str]) -> list[Risk]:
    if info.get("role", "master") != "master":
        return [Risk(server, "failed", "it is a replica and takes no writes", "name its master")]
    replicas, needed = int(info.get("connected_slaves", 0)), int(settings.get("min-replicas-to-write", 0))
    if not replicas:
        text = "it has no replica: losing its disk loses every message and checkpoint, and nothing takes over"
        return [Risk(server, "warning", text, "add a replica, with Sentinel or a Cluster to promote it")]
    if not needed:
        text = (
            "it takes messages and commits while no replica follows (min-replicas-to-write 0): a fail-over"
            " then loses them"
        )
        fix = (
            "set min-replicas-to-write 1; wait_replicas=1 in the URL makes every message and commit wait for"
            " a replica"
        )
        return [Risk(server, "warning", text, fix)]
    return []


def _info(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
