"""Commands to devices: added with the business's own transactions, sent one at a time a device, none lost.

What users of outboxes need stands here: ``from holdfast import devices``, then ``devices.Patience``.
"""

from typing import TYPE_CHECKING

from holdfast.extend import exports

if TYPE_CHECKING:
    from holdfast.devices.adapters import open_outbox
    from holdfast.devices.fleet import Behaviour, Fleet
    from holdfast.devices.outbox import Outbox
    from holdfast.devices.ports.broker import BrokerService
    from holdfast.devices.ports.device import Connect
    from holdfast.devices.rules.device_queue import CommandState, Patience, StoredCommand
    from holdfast.devices.rules.dialect import Dialect, JsonDialect, PlainDialect, Reading
    from holdfast.devices.rules.presence import PresenceRules
    from holdfast.devices.rules.topics import Topics
    from holdfast.devices.services.sqlalchemy.tables import metadata
    from holdfast.devices.spec import CommandFields, CommandOptions, OutboxSpec, Page
else:  # Whoever imports a module below waits for none of these.
    __getattr__ = exports(
        __name__,
        {
            "BrokerService": "holdfast.devices.ports.broker",
            "CommandFields": "holdfast.devices.spec",
            "CommandOptions": "holdfast.devices.spec",
            "CommandState": "holdfast.devices.rules.device_queue",
            "Behaviour": "holdfast.devices.fleet",
            "Connect": "holdfast.devices.ports.device",
            "Dialect": "holdfast.devices.rules.dialect",
            "Fleet": "holdfast.devices.fleet",
            "JsonDialect": "holdfast.devices.rules.dialect",
            "Outbox": "holdfast.devices.outbox",
            "OutboxSpec": "holdfast.devices.spec",
            "Page": "holdfast.devices.spec",
            "Patience": "holdfast.devices.rules.device_queue",
            "PlainDialect": "holdfast.devices.rules.dialect",
            "PresenceRules": "holdfast.devices.rules.presence",
            "Reading": "holdfast.devices.rules.dialect",
            "StoredCommand": "holdfast.devices.rules.device_queue",
            "Topics": "holdfast.devices.rules.topics",
            "metadata": "holdfast.devices.services.sqlalchemy.tables",
            "open_outbox": "holdfast.devices.adapters",
        },
    )

__all__ = [
    "Behaviour",
    "BrokerService",
    "CommandFields",
    "CommandOptions",
    "CommandState",
    "Connect",
    "Dialect",
    "Fleet",
    "JsonDialect",
    "Outbox",
    "OutboxSpec",
    "Page",
    "Patience",
    "PlainDialect",
    "PresenceRules",
    "Reading",
    "StoredCommand",
    "Topics",
    "metadata",
    "open_outbox",
]
