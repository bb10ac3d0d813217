"""What programs send by the API stands under their place in a trace."""

from __future__ import annotations

import json

import pytest

from holdfast.tasks.names import task_queue
from holdfast.wiring.services import Services
from tests.console.api.conftest import Api

PLACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def place_of_what_is_sent(
    api: Api, services: Services, place: str, path: str, body: object, queue: str
) -> str:
    headers = {"Content-Type": "application/json", "traceparent": place}
    said = await api.raw("POST", f"/api/v1{path}", json.dumps(body).encode(), headers)
    assert said.status == 202, said
    (message,) = await services.queue(queue).receive(1, 20.0, 60.0, "me")
    await services.queue(queue).delete([message.receipt])
    return message.attributes.get("traceparent", "")


@pytest.mark.parametrize(
    "path,body,queue",
    [
        ("/streams/nobody/messages", {"messages": [{"key": "k", "body": {}}]}, "nobody"),
        ("/tasks/nobody", {"task_type": "t"}, task_queue("nobody", "t")),
    ],
)
async def test_what_is_sent_has_the_place_of_the_request(
    api: Api, services: Services, path: str, body: object, queue: str
) -> None:
    assert await place_of_what_is_sent(api, services, PLACE, path, body, queue) == PLACE
    assert await place_of_what_is_sent(api, services, "no place", path, body, queue) == ""
