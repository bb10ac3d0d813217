"""An app whose streams act. It imports only what users may, so that nodes of other versions run it too."""

import hashlib
import os
from typing import Any

import msgspec

from holdfast import App, Backoff, Context, Job, StreamHandler

TIMEOUT_S = 2.0
MAX_TRIES = 2

app = App("acting")


class Item(msgspec.Struct):
    """One message: ``do`` names a deed."""

    key: str
    n: int
    do: str = ""


class State(msgspec.Struct):
    """What a stream has seen."""

    last: int = -1
    digest: str = ""


def follow(digest: str, n: int) -> str:
    """The digest after message ``n``."""
    return hashlib.sha256(f"{digest}:{n}".encode()).hexdigest()[:16]


RULES: dict[str, Any] = {
    "message": Item,
    "gap_timeout_s": 60.0,
    "max_tries": MAX_TRIES,
    "backoff": Backoff(0.02, 0.1),
    "timeout_s": TIMEOUT_S,
}


SITES = 6
FLUSH_S = 0.2
WINDOW = int(os.environ.get("CHAOS_WINDOW", "1024"))
HOOKS = os.environ.get("CHAOS_HOOKS", "http://localhost/hooks")


class ActingState(State):
    """What a stream has seen, what waits for its timer, and how many effects it has sent to each site."""

    waiting: list[int] = []
    sent: dict[str, int] = {}


@app.stream("chain", seq="n", first_seq=0, **RULES)
class Acting(StreamHandler[Item]):
    """Sends each message to a task, to a webhook and to a site, and, when its timer fires, what came since to
    a site."""

    def open(self, context: Context, state: bytes | None) -> None:
        self.state = msgspec.json.decode(state, type=ActingState) if state else ActingState()

    def process(self, message: Item, context: Context) -> Any:
        assert message.n == self.state.last + 1, f"{message.n} came after {self.state.last}"
        self.state.last = message.n
        self.state.digest = follow(self.state.digest, message.n)
        self._send(message.n, context, n=message.n)
        context.send("note", {"source": context.key, "n": message.n})
        context.send(HOOKS, {"source": context.key, "n": message.n})
        if not self.state.waiting:
            context.wake("flush", after_s=FLUSH_S)
        self.state.waiting.append(message.n)
        return {"n": message.n, "digest": self.state.digest}

    def wake(self, name: str, body: Any, context: Context) -> None:
        self._send(self.state.last, context, waited=self.state.waiting)
        self.state.waiting = []

    def _send(self, turn: int, context: Context, **more: Any) -> None:
        """Send to one of two sites: effects to both are numbered each for itself."""
        site = f"site-{(int(context.key.rpartition('-')[2]) + turn % 2) % SITES}"
        number = self.state.sent[site] = self.state.sent.get(site, 0) + 1
        context.send("sites", {"source": context.key, "site": site, "number": number, **more}, key=site)

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.state)


@app.stream("sites", identity_window=WINDOW)
def site(message: dict[str, Any], context: Context) -> Any:
    """Tells what came."""
    return message


# A repeat waits for so long while the first one runs; and each death of a node costs a try.
@app.task("note", timeout_s=10.0, margin_s=2.0, tries=20)
def note(body: dict[str, Any], job: Job) -> Any:
    """Tells which it is."""
    return body
