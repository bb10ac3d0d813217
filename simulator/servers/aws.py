"""SQS and S3 as two stand-ins speak them. Neither is complete: where they differ, tests use both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from holdfast.errors import ConfigError
from simulator.servers import programs
from simulator.servers.loopback import HOST
from simulator.servers.server import Server, exchange

REGION = "eu-central-1"


class _AwsServer(Server):
    """What both have: everything in memory, one endpoint for all services."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def environment(self) -> dict[str, str]:
        """What leads AWS clients here, whatever else is set up on this machine."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    async def answers(self) -> bool:
        request = f"GET /health HTTP/1.1\r\nHost: {self.address}\r\nConnection: close\r\n\r\n"
        return (await exchange(self.port, request.encode())).startswith(b"HTTP/1.1")


class MotoServer(_AwsServer):
    """moto: many services of AWS, of which SQS and S3 are used here."""

    name: ClassVar[str] = "moto"

    def command(self) -> Sequence[str | Path]:
        if find_spec("moto") is None:
            raise ConfigError("moto is missing: pip install 'moto[server,sqs,s3]' (make dev does)")
        # Not from its own folder (-P), where other modules have the names of packages.
        program = Path(__file__).with_name("moto_program.py")
        return [sys.executable, "-P", program, "-H", HOST, "-p", str(self.port)]


class FauxqsServer(_AwsServer):
    """fauxqs: SQS and S3 on Node.js; several times as fast as moto."""

    name: ClassVar[str] = "fauxqs"

    def command(self) -> Sequence[str | Path]:
        return [programs.find("fauxqs"), str(self.port)]
