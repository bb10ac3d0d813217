"""The kinds of servers that promises are kept on, for conformance suites that want a ``url``."""

import pytest

from simulator.servers import RedisCluster, RedisSentinel, RedisServer


class OneServer:
    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        return redis_server.url


class Shards:
    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        return redis_server.url + "?shards=5"


class Sentinels:
    @pytest.fixture
    def url(self, redis_sentinel: RedisSentinel) -> str:
        return redis_sentinel.url


class Cluster:
    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url
