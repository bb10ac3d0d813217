"""Faults in front of SQS: those that real queues have and local servers don't."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from simulator.proxies.http import HttpAnswer, HttpCall, HttpFaults
from simulator.proxies.plan import CallFault, Hit, Rule

RECEIVE = "ReceiveMessage"
TARGET = "AmazonSQS."
HEADERS = {"Content-Type": "application/x-amz-json-1.0"}

ONE_EACH = frozenset({"SendMessage", "DeleteMessage", "ChangeMessageVisibility"})
RECEIPT = "ReceiptHandle"

Entry = dict[str, Any]


class SqsFaults(HttpFaults):
    """A proxy in front of a server that speaks SQS's JSON protocol.

    What SQS promises still holds: messages of FIFO queues are neither delivered twice nor reordered.
    Second deliveries come with the next receive from the queue, by themselves; they share the visibility of
    the first.

    Attributes:
        messages: messages received, and entries that reached the server, by operation.
        empty_receives: receives that brought nothing.
    """

    throttled = "RequestThrottled"
    expired = "ExpiredTokenException"
    failed = "InternalFailure"

    def __init__(self, backend: str, rules: Iterable[Rule] = (), *, seed: int = 0, port: int = 0) -> None:
        super().__init__(backend, rules, seed=seed, port=port)
        self.messages: Counter[str] = Counter()
        self.empty_receives = 0
        self._copies = itertools.count(1)
        self._receipts: dict[str, str] = {}  # of second deliveries: those that the server knows
        self._again: dict[str, list[Entry]] = {}  # by queue: second deliveries to come

    def operation(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        return headers.get("X-Amz-Target", method).removeprefix(TARGET)

    def error(self, status: int, code: str, text: str) -> HttpAnswer:
        fault = "Sender" if status < 500 else "Receiver"
        body = {"__type": f"com.amazonaws.sqs#{code}", "message": text}
        return HttpAnswer(
            status, HEADERS | {"x-amzn-query-error": f"{code};{fault}"}, msgspec.json.encode(body)
        )

    async def serve(self, call: HttpCall) -> HttpAnswer:
        request = msgspec.json.decode(call.body or b"{}")
        if call.operation == RECEIVE:
            return await self._receive(call, request)
        if call.operation.endswith("Batch"):
            return await self._batch(call, request)
        if call.operation == "ChangeMessageVisibility" and (
            hit := self.strike(CallFault.NOT_IN_FLIGHT, call)
        ):
            return self.error(400, hit.rule.code or "MessageNotInflight", NOT_IN_FLIGHT)
        if call.operation in ONE_EACH:
            self.messages[call.operation] += 1
        return await self.forward(call, self._body(call, request, self._translated(request)))

    async def _receive(self, call: HttpCall, request: Entry) -> HttpAnswer:
        queue = request.get("QueueUrl", "")
        if again := self._again.get(queue):
            limit = request.get("MaxNumberOfMessages", 1)
            messages, self._again[queue] = again[:limit], again[limit:]
            self.messages[RECEIVE] += len(messages)
            return HttpAnswer(200, HEADERS, msgspec.json.encode({"Messages": messages}))
        answer = await self.forward(call, call.body)
        if answer.status != 200:
            return answer
        messages = (msgspec.json.decode(answer.body or b"{}") or {}).get("Messages") or []
        self.messages[RECEIVE] += len(messages)
        self.empty_receives += not messages
        if not messages or queue.endswith(".fifo"):
            return answer
        if hit := self.strike(CallFault.DUPLICATE, call):
            copies = [self._copy(message) for message in hit.some(messages)]
            self._again.setdefault(queue, []).extend(copies)
        if len(messages) > 1 and (hit := self.strike(CallFault.REORDER, call)):
            answer.body = msgspec.json.encode({"Messages": hit.shuffled(messages)})
        return answer

    def _copy(self, message: Entry) -> Entry:
        """A message as its second delivery shows it."""
        receipt = f"{message[RECEIPT]}-again-{next(self._copies)}"
        self._receipts[receipt] = message[RECEIPT]
        system = dict(message.get("Attributes") or {})
        if "ApproximateReceiveCount" in system:
            system["ApproximateReceiveCount"] = str(int(system["ApproximateReceiveCount"]) + 1)
        return message | {RECEIPT: receipt} | ({"Attributes": system} if system else {})

    async def _batch(self, call: HttpCall, request: Entry) -> HttpAnswer:
        entries: list[Entry] = request.get("Entries") or []
        failed: dict[str, Entry] = {}
        if call.operation == "ChangeMessageVisibilityBatch" and (
            hit := self.strike(CallFault.NOT_IN_FLIGHT, call)
        ):
            code = hit.rule.code or "MessageNotInflight"
            failed |= {e["Id"]: _failed(e["Id"], code, True, NOT_IN_FLIGHT) for e in hit.some(entries)}
        if hit := self.strike(CallFault.FAIL_ENTRIES, call):
            failed |= {e["Id"]: _said_to_fail(call.operation, hit, e["Id"]) for e in hit.some(entries)}
        passed = [self._translated(entry) for entry in entries if entry["Id"] not in failed]
        answer = HttpAnswer(200, HEADERS, b"{}")
        if passed or not entries:
            self.messages[call.operation] += len(passed)
            answer = await self.forward(call, self._body(call, request, request | {"Entries": passed}))
            if answer.status != 200:
                return answer
        said = msgspec.json.decode(answer.body or b"{}")
        done: Sequence[Entry] = said.get("Successful") or []
        if done and (hit := self.strike(CallFault.FAIL_ENTRIES_DONE, call)):
            failed |= {e["Id"]: _said_to_fail(call.operation, hit, e["Id"]) for e in hit.some(done)}
        if failed:
            said["Successful"] = [entry for entry in done if entry["Id"] not in failed]
            said["Failed"] = [*(said.get("Failed") or []), *failed.values()]
            answer.body = msgspec.json.encode(said)
        return answer

    def _translated(self, named: Entry) -> Entry:
        """The same, with the receipt that the server knows."""
        receipt = self._receipts.get(named.get(RECEIPT, ""))
        return named | {RECEIPT: receipt} if receipt else named

    def _body(self, call: HttpCall, came: Entry, goes: Entry) -> bytes:
        return call.body if came == goes else msgspec.json.encode(goes)


NOT_IN_FLIGHT = "Message does not exist or is not available for visibility timeout change."


def _said_to_fail(operation: str, hit: Hit, entry_id: str) -> Entry:
    mistake = "InvalidMessageContents" if operation.startswith("Send") else "ReceiptHandleIsInvalid"
    fits = mistake if hit.rule.sender_fault else "InternalError"
    return _failed(entry_id, hit.rule.code or fits, hit.rule.sender_fault, "The entry failed.")


def _failed(entry_id: str, code: str, sender_fault: bool, text: str) -> Entry:
    return {"Id": entry_id, "Code": code, "SenderFault": sender_fault, "Message": text}
