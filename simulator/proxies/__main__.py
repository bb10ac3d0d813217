"""``python -m simulator.proxies sqs|s3|http BACKEND [--seed N] [--port N]``: a proxy that has faults
befall calls, as its standard input commands."""

from __future__ import annotations

import argparse
import asyncio

from simulator.proxies.process import KINDS, serve


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m simulator.proxies", description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("backend", help="the server's URL, such as http://127.0.0.1:5000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="where to listen; a free port by default")
    given = parser.parse_args()
    await serve(KINDS[given.kind](given.backend, seed=given.seed, port=given.port))


if __name__ == "__main__":
    asyncio.run(main())
