"""Checks of an app against the services and queues of a config."""

from __future__ import annotations

from holdfast.app.app import App
from holdfast.assembly.loading import of_products
from holdfast.assembly.products import products
from holdfast.common.redaction import redact_url
from holdfast.errors import ConfigError, NoDatabase
from holdfast.registration.targets import check_target
from holdfast.registration.urls import has_password, shown
from holdfast.streams.spec import QUEUE_NUMBER
from holdfast.streams.typed.state import typed_state_of
from holdfast.tasks.names import event_queue, task_queue
from holdfast.wiring.services import Services


def check_app(services: Services, app: App) -> None:
    """Raise ConfigError if the app can't run on these services, or contradicts the config."""
    from holdfast.config.contradictions import check  # noqa: PLC0415

    config = services.config
    check(config, app.streams.values())
    _check_one_stream(services.only_stream(), app)
    for name, model in app.models.items():
        for setting in ("model_memory_mb", "slot_memory_mb"):
            if 0 < (limit_mb := getattr(config, setting)) < model.memory_mb:
                raise ConfigError(
                    f"model {name!r} has memory_mb = {model.memory_mb}, and {setting} is {limit_mb}:"
                    f" no slot could hold it; raise {setting}"
                )
    for name, stream in app.streams.items():
        if not _numbers(services, name) and stream.seq == QUEUE_NUMBER:
            raise ConfigError(
                f"stream {name!r} has seq='queue', and queue_url is {redact_url(config.queue_url)!r}: that"
                " queue doesn't number messages; declare seq= as the field that holds it, leave it out,"
                " or use a FIFO queue, whose name ends in '.fifo'"
            )
    for name, stream in app.streams.items():
        if (state := typed_state_of(stream.handler)) is not None:
            state.check_steps(name)
        _check_results_to(app, name, stream.results_to)
        _check_archive(services, name, stream.archive)
    for product in products():
        product.check(services, app)


def _numbers(services: Services, stream: str) -> bool:
    """Return True if the queue of a stream numbers its messages."""
    try:
        return services.queue(stream).seq_kind != "absent"
    except NoDatabase:  # a read before the first node has made it; queues of SQLite number messages
        return True


def _check_results_to(app: App, stream: str, target: str) -> None:
    """Raise ConfigError for a target of results that doesn't exist."""
    if not target:
        return
    try:
        check_target(target, app.targets)
    except ConfigError as error:
        raise ConfigError(f"stream {stream!r}: results_to: {error}") from None


def _check_archive(services: Services, stream: str, url: str) -> None:
    """Raise ConfigError for an archive that nothing serves."""
    if not url:
        return
    if has_password(url):
        raise ConfigError(
            f"stream {stream!r}: archive is {shown(url)!r}: it holds a password, which would be in the code;"
            " leave it out, and give credentials as the object store's own tools take them"
        )
    try:
        services.archive(url)
    except ConfigError as error:
        raise ConfigError(f"stream {stream!r}: {error}") from None


def _check_one_stream(one: str, app: App) -> None:
    """Raise ConfigError unless the stream ``one``, whose claims have bare ids, is the app's only one, and no
    product has claims. An empty ``one`` is no such stream."""
    others = sorted({*app.streams, *of_products(app)} - {one})
    if one and one not in app.streams:
        raise ConfigError(
            f"coordinator_url names ?stream={one}, which the app doesn't declare; it declares"
            f" {', '.join(others) or 'no stream'}: name one of its streams, or leave ?stream= out"
        )
    if one and others:
        raise ConfigError(
            f"coordinator_url names ?stream={one}, but the app also declares {', '.join(others)}:"
            " claims of all of them would have the same names; leave ?stream= out, or move the others to"
            " another app"
        )


async def look_for_queues(services: Services, app: App) -> list[str]:
    """Make missing queues if ``create_queues`` allows it; return texts about missing ones otherwise. Raises
    ConfigError."""
    setup, lacking = services.queue_setup(), list[str]()
    if setup is None:
        return lacking
    for name, visibility_s in queues_of(app).items():
        if services.config.create_queues:
            await setup.create(name, visibility_s=visibility_s, tags={}, encrypt=False, kms_key="")
        elif text := await setup.lacking(name):
            lacking.append(text)
    return lacking


def queues_of(app: App) -> dict[str, float]:
    """Return the names of an app's queues, each with its default visibility in seconds."""
    from holdfast.tasks.producer import EVENT_VISIBILITY_S  # noqa: PLC0415

    streams = {name: spec.timeout_s + spec.gap_timeout_s for name, spec in app.streams.items()}
    tasks = {task_queue(app.name, name): spec.visibility_s for name, spec in app.tasks.items()}
    briefs = {event_queue(app.name): EVENT_VISIBILITY_S} if app.tasks else {}
    found = streams | tasks | briefs
    for product in products():
        found |= product.queues(app)
    return found
