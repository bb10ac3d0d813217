"""The pods of rendered manifests as processes of this machine: with their own commands, variables and probes,
started and ended in Kubernetes' order.

What a process can't have is replaced: a pod has an address of its own on loopback for a network of its own,
and ``0.0.0.0`` means that address. Images, volumes, and limits of rights and memory are left out. Fields have
the names of Kubernetes' API (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from simulator.servers.loopback import free_port

ENTRY_POINT = (sys.executable, "-m", "holdfast")
"""That of images which `holdfast image build` makes."""

LOOK_S = 0.5
"""How often pods are asked whether they are ready."""

OWN = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables that every process here has."""

Secrets = Mapping[str, Mapping[str, str]]


class PodFailed(Exception):
    """A pod ended by itself, didn't become ready, or had to be killed."""


class Pod:
    """One pod with one container. ``template`` names the template that it is made of, ``secrets`` are those
    that its variables come from, ``folder`` is its working directory."""

    def __init__(
        self, name: str, template: str, spec: Mapping[str, Any], folder: Path, secrets: Secrets
    ) -> None:
        self.name = name
        self.template = template
        port = free_port()  # nobody else has it, so nobody has this address
        self.address = f"127.77.{port >> 8}.{port & 255}"
        self._spec = spec
        self._folder = folder
        self._secrets = secrets
        self._process: asyncio.subprocess.Process | None = None
        self.ending = False

    @property
    def _container(self) -> Mapping[str, Any]:
        (container,) = self._spec["containers"]
        return dict(container)

    @property
    def url(self) -> str:
        """The URL of its first port."""
        return f"http://{self.address}:{self._container['ports'][0]['containerPort']}"

    @property
    def ended(self) -> bool:
        """True if its process has ended."""
        return self._process is None or self._process.returncode is not None

    async def start(self) -> None:
        """Start the process, and wait until it serves (startupProbe)."""
        container = self._container
        command = container.get("command", ENTRY_POINT)
        arguments = [self._own(argument) for argument in container["args"]]
        log = self._folder / f"{self.name}.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                cwd=self._folder,
                env=self._variables(),
                stderr=output,
                start_new_session=True,
            )
        probe = container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.ended:
                raise PodFailed(f"{self.name} ended by itself:\n{log.read_text()[-2000:]}")
            if await self._probe(probe):
                return
            await asyncio.sleep(probe["periodSeconds"])
        raise PodFailed(f"{self.name} never served:\n{log.read_text()[-2000:]}")

    async def ready(self) -> bool:
        """Ask its readinessProbe once."""
        return not self.ended and await self._probe(self._container["readinessProbe"])

    async def live(self) -> bool:
        """Ask its livenessProbe once."""
        return not self.ended and await self._probe(self._container["livenessProbe"])

    def stop(self) -> None:
        """Stop all its processes where they are, as when its host falls silent."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    async def end(self) -> None:
        """Call its preStop hook, tell it to end, and wait for as long as it may take. Raises PodFailed if it
        takes longer: Kubernetes would kill it."""
        assert self._process is not None
        self.ending = True
        deadline = time.monotonic() + self._spec["terminationGracePeriodSeconds"]
        if (hook := self._container.get("lifecycle", {}).get("preStop")) is not None:
            await asyncio.sleep(hook["sleep"]["seconds"])
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            raise PodFailed(f"{self.name} didn't end within its grace period") from None

    def kill(self) -> None:
        """End all its processes at once, as when its host dies."""
        self.ending = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _variables(self) -> dict[str, str]:
        fields = {
            "status.podIP": self.address,
            "metadata.name": self.name,
            "metadata.labels['pod-template-hash']": self.template,
        }
        found = {name: os.environ[name] for name in OWN if name in os.environ}
        for source in self._container.get("envFrom", ()):
            found |= self._secrets[source["secretRef"]["name"]]
        for each in self._container["env"]:
            value = each["value"] if "value" in each else self._taken(fields, each["valueFrom"])
            found[each["name"]] = self._own(value)
        return found

    def _own(self, text: str) -> str:
        """Put in the pod's address."""
        return text.replace("$(POD_IP)", self.address).replace("0.0.0.0", self.address)  # noqa: S104

    def _taken(self, fields: Mapping[str, str], source: Mapping[str, Any]) -> str:
        if (secret := source.get("secretKeyRef")) is not None:
            return self._secrets[secret["name"]][secret["key"]]
        return fields[source["fieldRef"]["fieldPath"]]

    async def _probe(self, probe: Mapping[str, Any]) -> bool:
        asked = probe["httpGet"]
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        url = f"{asked['scheme'].lower()}://{self.address}:{ports[asked['port']]}{asked['path']}"
        timeout = aiohttp.ClientTimeout(total=probe["timeoutSeconds"])
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                return 200 <= answer.status < 400
        except (aiohttp.ClientError, TimeoutError):
            return False


class Deployment:
    """The pods of one Deployment. ``ready`` are those to which its service sends."""

    def __init__(self, manifest: Mapping[str, Any], folder: Path, secrets: Secrets) -> None:
        self._manifest = manifest
        self._folder = folder
        self._secrets = secrets
        self._number = 0
        self._template = 0
        self._ends = set[asyncio.Task[None]]()
        self._looked = asyncio.Condition()
        self.pods: list[Pod] = []
        self.ready: list[Pod] = []

    @property
    def _name(self) -> str:
        return str(self._manifest["metadata"]["name"])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run as many pods as it asks for. At the end they are killed."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await self.scale(self._manifest["spec"]["replicas"])
            yield
            await self.settled()
        finally:
            watching.cancel()
            for pod in self.pods:
                pod.kill()
            await asyncio.gather(watching, *self._ends, return_exceptions=True)

    async def scale(self, replicas: int) -> None:
        """Start pods, or end the newest ones, until there are so many that aren't ending; wait until all are
        available."""
        living = [pod for pod in self.pods if not pod.ending]
        for pod in living[replicas:]:
            self.end(pod)
        await asyncio.gather(*(self.add() for _ in range(replicas - len(living))))

    async def roll(self) -> None:
        """Replace all pods, one by one, by those of another template."""
        for pod in self.begin_update():
            await self.replace(pod)

    def begin_update(self) -> list[Pod]:
        """Make all further pods of another template; return those that are to be replaced."""
        self._template += 1
        return [pod for pod in self.pods if not pod.ending]

    def take_back_update(self) -> None:
        """Make all further pods of the template from before."""
        self._template -= 1

    async def replace(self, pod: Pod) -> None:
        """Replace a pod: another one is available before it is told to end."""
        update = self._manifest["spec"]["strategy"]["rollingUpdate"]
        assert (update["maxSurge"], update["maxUnavailable"]) == (1, 0)
        await self.add()
        self.end(pod)

    async def kill(self, pod: Pod) -> None:
        """Kill the processes of a pod, and start another in its place."""
        pod.kill()
        await self.add()

    async def settled(self) -> None:
        """Wait until all pods that were told to end have ended. Raises PodFailed for one that had to be
        killed."""
        await asyncio.gather(*self._ends)

    def end(self, pod: Pod) -> None:
        """Tell a pod to end, without waiting for it."""
        self._ends.add(asyncio.ensure_future(pod.end()))

    async def add(self) -> None:
        """Start one more pod, and wait until it is available."""
        self._number += 1
        spec = self._manifest["spec"]["template"]["spec"]
        name, template = f"{self._name}-{self._number}", f"template-{self._template}"
        pod = Pod(name, template, spec, self._folder, self._secrets)
        self.pods.append(pod)
        await pod.start()
        async with self._looked:
            await self._looked.wait_for(lambda: pod in self.ready)
        await asyncio.sleep(self._manifest["spec"].get("minReadySeconds", 0))

    async def _watch(self) -> None:
        """Ask all pods again and again which are ready."""
        while True:
            living = [pod for pod in self.pods if not pod.ending]
            answers = await asyncio.gather(*(pod.ready() for pod in living))
            self.ready = [pod for pod, ready in zip(living, answers, strict=True) if ready and not pod.ending]
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(LOOK_S)
