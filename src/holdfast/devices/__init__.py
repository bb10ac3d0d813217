"""Commands to devices: added in the business's own transactions, sent one at a time to each device, none
lost.

Users of outboxes find all names here: ``from holdfast import devices``, then ``devices.Patience``.
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
else:  # Modules are imported when their names are used.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.devices.adapters": "open_outbox",
            "holdfast.devices.fleet": "Behaviour Fleet",
            "holdfast.devices.outbox": "Outbox",
            "holdfast.devices.ports.broker": "BrokerService",
            "holdfast.devices.ports.device": "Connect",
            "holdfast.devices.rules.device_queue": "CommandState Patience StoredCommand",
            "holdfast.devices.rules.dialect": "Dialect JsonDialect PlainDialect Reading",
            "holdfast.devices.rules.presence": "PresenceRules",
            "holdfast.devices.rules.topics": "Topics",
            "holdfast.devices.services.sqlalchemy.tables": "metadata",
            "holdfast.devices.spec": "CommandFields CommandOptions OutboxSpec Page",
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
