"""The actions on outboxes, commands and rollouts, for the JSON API and the console. The command line has
commands of its own for them: they take several commands, and their help must not wait for the imports of the
API."""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.devices.outboxes import (
    ABORT_ACTION,
    CANCEL_ACTION,
    PAUSE_ACTION,
    RESUME_ACTION,
    RETRY_ACTION,
    CommandRecord,
    Outboxes,
    OutboxView,
    command_record,
)
from holdfast.devices.rules.device_turn import Rollout
from holdfast.extend.api import Action, Done, NoFields
from holdfast.extend.products import Services


class DeviceOnly(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device; the whole outbox if it is left out."""

    device: Annotated[str, Meta(max_length=255, title="Device")] = ""


class RolloutName(NamedTuple):
    """The name of a rollout: its outbox and its number."""

    outbox: str
    number: int

    def __str__(self) -> str:
        return f"{self.outbox}/{self.number}"


@partial(Action, name="pauseOutbox", title="Pause", audit=PAUSE_ACTION)
async def pause(services: Services, outbox: str, chosen: DeviceOnly) -> Done[OutboxView]:
    """Send nothing more to a device, or to any, until it is resumed."""
    outboxes = Outboxes.of(services)
    await outboxes.pause(outbox, chosen.device)
    return Done(await outboxes.view(outbox), f"{chosen.device or outbox} is paused: nothing more is sent")


@partial(Action, name="resumeOutbox", title="Resume", audit=RESUME_ACTION)
async def resume(services: Services, outbox: str, chosen: DeviceOnly) -> Done[OutboxView]:
    """End the pause of a device, or of the outbox."""
    outboxes = Outboxes.of(services)
    await outboxes.resume(outbox, chosen.device)
    return Done(await outboxes.view(outbox), f"{chosen.device or outbox} goes on")


@partial(
    Action,
    name="abortRollout",
    title="Abort",
    audit=ABORT_ACTION,
    confirm="Send nothing more of it",
    warning="nothing more of the rollout will be sent",
)
async def abort(services: Services, rollout: RolloutName, chosen: NoFields) -> Done[Rollout]:
    """Send nothing more of a rollout; commands that are out may still succeed."""
    aborted = await Outboxes.of(services).abort(*rollout)
    return Done(aborted, f"rollout {aborted.id} is aborted; {aborted.done} of {aborted.total} are done")


@partial(Action, name="cancelCommand", title="Cancel", audit=CANCEL_ACTION)
async def cancel(services: Services, command: int, chosen: NoFields) -> Done[CommandRecord]:
    """Cancel a scheduled command; it counts as failed."""
    outboxes = Outboxes.of(services)
    await outboxes.command(command)
    await outboxes.cancel([command])
    return Done(command_record(await outboxes.command(command)), f"command {command} is cancelled")


@partial(Action, name="retryCommand", title="Send again", audit=RETRY_ACTION)
async def retry(services: Services, command: int, chosen: NoFields) -> Done[CommandRecord]:
    """Send a failed or expired command again, without expiry."""
    outboxes = Outboxes.of(services)
    await outboxes.command(command)
    await outboxes.retry([command])
    return Done(command_record(await outboxes.command(command)), f"command {command} is sent again")
