"""``holdfast console``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli import exits, output
from holdfast.cli.node import done_before, signals
from holdfast.cli.options import DEFAULTS, Options
from holdfast.errors import ConfigError
from holdfast.wiring.services import Services

if TYPE_CHECKING:
    from holdfast.config.settings import Config
    from holdfast.console.service import Console, ConsoleSettings

PORT = 8400


def console(
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    tokens: Path | None = None,
    name: tuple[str, ...] = (),
    identity_header: str = "",
    proxy: tuple[str, ...] = (),
    operator: tuple[str, ...] = (),
    pictures: bool = False,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    options: Options = DEFAULTS,
) -> int:
    """Show a cluster in the browser: nodes, streams, tasks, dead letters, and what needs attention. Prints an
    address with a token that also allows actions.

    Readers on this machine need no token. If --host can be reached from other machines, callers need a
    token, or a proxy that names them.

    ```
    holdfast console
    holdfast console --host 0.0.0.0 --tokens console.tokens --name console.example.com
    ```

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        tokens: File with the digests of tokens and their rights, from `holdfast console-token`. Required
            unless --host is loopback or a proxy names the callers.
        name: A name of this server in browsers' addresses, in addition to localhost and plain addresses.
        identity_header: The header in which a proxy names the caller, such as X-Forwarded-User.
        proxy: An address or network of trusted proxies, such as 10.0.0.0/8.
        operator: A caller named by a proxy that may also change something; the others only read.
        pictures: Callers named by a proxy may see pictures of cameras.
        tls_cert: Certificate with its chain (PEM), to serve HTTPS.
        tls_key: Its private key (PEM).
    """
    import uvloop  # noqa: PLC0415

    from holdfast.console.access import settings_for  # noqa: PLC0415
    from holdfast.console.service import ConsoleSettings  # noqa: PLC0415
    from holdfast.gateway.listen import Tls  # noqa: PLC0415

    config = options.load()
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together; give both")
    access = settings_for(
        host,
        tokens=tokens is not None,
        names=name,
        identity_header=identity_header,
        proxies=proxy,
        operators=operator,
        pictures=pictures,
    )
    tls = Tls(tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    settings = ConsoleSettings(host=host, port=port, access=access, tokens=tokens, tls=tls)
    return uvloop.run(serve(config, settings))


def console_token(
    name: str,
    /,
    *,
    tokens: Path,
    operate: bool = False,
    pictures: bool = False,
) -> None:
    """Make a token for a user of a console, add its digest to the file, and print the token, which is stored
    nowhere. To revoke a token, delete its line; consoles reload the file.

    ```
    holdfast console-token alice --tokens console.tokens --operate
    ```

    Args:
        name: Name of the user in the audit log.
        tokens: The file for `holdfast console --tokens`.
        operate: The user may also change something, not only read.
        pictures: The user may see pictures of cameras.
    """
    from holdfast.console.tokens import Right, add  # noqa: PLC0415

    asked: tuple[tuple[bool, Right], ...] = ((operate, "operate"), (pictures, "pictures"))
    output.say(add(tokens, name, [right for wanted, right in asked if wanted]))


async def start_beside(services: Services, log: Any) -> Console:
    """Start a console for nodes of this process, on loopback: at the usual port, or at a free one if that is
    taken."""
    from holdfast.console.service import Console, ConsoleSettings  # noqa: PLC0415

    running = Console(services, ConsoleSettings(port=PORT), log)
    try:
        await running.start()
    except ConfigError:
        await running.stop()
        running = Console(services, ConsoleSettings(port=0), log)
        await running.start()
    return running


def address_line(running: Console) -> str:
    """Return the line with the address of a console, and with its token if it has made one."""
    token = f"/enter?token={running.own_token}" if running.own_token else ""
    return f"console: {running.address}{token}"


async def serve(config: Config, settings: ConsoleSettings) -> int:
    """Run a console until a signal or a crash; returns the exit code."""
    import structlog  # noqa: PLC0415

    from holdfast.console.service import Console  # noqa: PLC0415

    asked, over, log = *signals(), structlog.get_logger()
    async with Services(config) as services:
        running = Console(services, settings, log)
        crashed = running.host.crashed
        crashed.add_done_callback(lambda _: asked.set())
        await running.start()
        output.say(address_line(running))
        await asked.wait()
        if crashed.done():
            log.error("console crashed", exc_info=crashed.result())
        if not await done_before(running.stop(), over):
            return exits.INTERRUPTED
        return exits.FAILED if crashed.done() else exits.OK
