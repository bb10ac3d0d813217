"""Real servers for tests, demos and benchmarks: processes on free loopback ports, data in a temporary folder.

Each is an asynchronous context manager. ``start`` returns once the server answers; ``stop`` ends it and
deletes its data; and it never outlives the process that started it, however that ends. None of them is
bound to an event loop. Start them from the main thread: a server ends with the thread that started it.

A program that is missing raises ``ConfigError``, which names what installs it.
"""

from holdfast.testing.servers.aws import FauxqsServer, MotoServer
from holdfast.testing.servers.ftp import FtpFaults, FtpServer, VsftpdServer
from holdfast.testing.servers.mosquitto import MosquittoServer
from holdfast.testing.servers.postgresql import PostgresqlServer
from holdfast.testing.servers.redis import RedisCluster, RedisSentinel, RedisServer
from holdfast.testing.servers.server import Group, Server
from holdfast.testing.servers.sftp import SftpFaults, SftpServer
from holdfast.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "FauxqsServer",
    "FtpFaults",
    "FtpServer",
    "Group",
    "MosquittoServer",
    "MotoServer",
    "PostgresqlServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "SftpFaults",
    "SftpServer",
    "VsftpdServer",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
