"""Real servers for tests, demos and benchmarks: processes on free loopback ports, data in a temporary folder.

Each is an asynchronous context manager. ``start`` returns once the server answers; ``stop`` ends it and
deletes its data; and it never outlives the process that started it, however that ends. None of them is
bound to an event loop. Start them from the main thread: a server ends with the thread that started it.

A program that is missing raises ``ConfigError``, which names what installs it.
"""

from simulator.servers.aws import FauxqsServer, MotoServer
from simulator.servers.buildah import Buildah
from simulator.servers.docker_registry import DockerRegistryServer
from simulator.servers.ftp import FtpFaults, FtpServer, VsftpdServer
from simulator.servers.mosquitto import MosquittoServer
from simulator.servers.postgresql import PgbouncerServer, PostgresqlServer, PostgresqlStandby
from simulator.servers.prometheus import PrometheusServer, promtool
from simulator.servers.redis import RedisCluster, RedisSentinel, RedisServer
from simulator.servers.server import Group, Server
from simulator.servers.sftp import SftpFaults, SftpServer
from simulator.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "Buildah",
    "DockerRegistryServer",
    "FauxqsServer",
    "FtpFaults",
    "FtpServer",
    "Group",
    "MosquittoServer",
    "MotoServer",
    "PgbouncerServer",
    "PostgresqlServer",
    "PostgresqlStandby",
    "PrometheusServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "SftpFaults",
    "SftpServer",
    "VsftpdServer",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "promtool",
]
