"""Sends tasks whose delay is longer than their queue's. Their messages are in the task store until they are
due; any node sends them, and the store hands each to one at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from holdfast.cluster.host import Host
from holdfast.common.due import AHEAD_S, LEASE_S, pause_s
from holdfast.errors import HoldfastError, InvalidMessage, TooLarge
from holdfast.ports.tasks import TaskStore
from holdfast.rules.tasks.task import Task
from holdfast.tasks.producer import Producer

TASKS_A_CALL = 100


class DelayedTasks:
    """Asks for one node, and sends what is due by ``producer``."""

    def __init__(self, host: Host, store: TaskStore, producer: Producer) -> None:
        self._host = host
        self._store = store
        self._producer = producer

    async def run(self) -> None:
        """Ask for ever."""
        clock = self._host.clock
        while True:
            await clock.sleep(pause_s(clock.random()))
            while await self.ask() == TASKS_A_CALL:
                pass

    async def ask(self) -> int:
        """Ask once, and send what is due; returns how many tasks there were."""
        host = self._host
        if not host.membership.alive or host.draining:
            return 0
        try:
            due = await self._store.due(AHEAD_S, TASKS_A_CALL, LEASE_S)
        except HoldfastError as error:
            host.log.debug("cannot read due tasks", error=str(error))
            return 0
        by_type = defaultdict[str, list[Task]](list)
        for task in due:
            by_type[task.type].append(task)
        await asyncio.gather(*(self._send(tasks) for tasks in by_type.values()))
        return len(due)

    async def _send(self, tasks: Sequence[Task]) -> None:
        """Send tasks of one type. What fails is handed out again once its lease is over."""
        try:
            await self._producer.send_delayed(tasks, AHEAD_S)
        except TooLarge as error:
            if len(tasks) > 1:
                for task in tasks:
                    await self._send([task])
                return
            await self._refused(tasks[0], error)
        except HoldfastError as error:
            self._host.log.warning("cannot send delayed tasks", type=tasks[0].type, error=str(error))

    async def _refused(self, task: Task, error: TooLarge) -> None:
        """End a task that its queue never takes: when it was sent, the queue still took as much."""
        self._host.log.error("cannot send delayed task", task_id=task.task_id, error=str(error))
        try:
            ended = await self._store.cancel(task.task_id, f"its queue refuses it: {error}")
            if ended is not None and ended.message:
                await self._notify(ended)
        except HoldfastError as failure:
            self._host.log.warning("cannot end delayed task", task_id=task.task_id, error=str(failure))

    async def _notify(self, task: Task) -> None:
        """Send the message of an ended task, so that a node notifies its producer and sends what follows."""
        try:
            await self._producer.send_ended(task)
        except (TooLarge, InvalidMessage) as error:
            self._host.log.error("cannot notify producer", task_id=task.task_id, error=str(error))
            await self._store.messages_sent([task.task_id])
