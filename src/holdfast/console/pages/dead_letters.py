"""The pages of dead letters: lists, one dead letter, and redrive or purge after a preview.

An action applies to exactly the dead letters of its preview. Some queues hide from other readers for a
while what is read; these are read only on request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from holdfast.console.access import Group, caller_of
from holdfast.console.api.known import check_queue
from holdfast.console.pages.acting import act, field
from holdfast.console.parts import ConsoleParts
from holdfast.console.rendering import html_response
from holdfast.errors import OperationRefused
from holdfast.http.problem import RequestRefused
from holdfast.operate import dead_letters as operations
from holdfast.operate.dead_letters import FoundDeadLetters
from holdfast.ports.dead_letters import in_order
from holdfast.ports.queue import DeadLetter, Queue

ROWS = 50
SCAN_MAX = 2_000
"""The most dead letters that are read to find some."""

PREVIEWS_MAX, PREVIEW_BYTES_MAX = 100, 64_000_000
PREVIEW_S = 900.0
"""The most previews that are kept, the most bytes of one and of all, and the seconds for which one is
kept."""

SEEN_MAX, SEEN_BYTES_MAX = 1_000, 16_000_000
"""The most listed dead letters that are kept to be shown, and the most bytes of them."""

TEXT_MAX = 600


class DeadLettersQuestion(NamedTuple):
    """A search for dead letters: of a queue, of a key, with this text in the reason, after the one with
    this id. With ``look`` they are read although that hides them."""

    queue: str
    key: str = ""
    text: str = ""
    after: str = ""
    look: bool = False

    @property
    def query(self) -> str:
        """The search as the query of an address."""
        named = {
            "queue": self.queue,
            "key": self.key,
            "text": self.text,
            "after": self.after,
            "look": "1" if self.look else "",
        }
        return urlencode({name: value for name, value in named.items() if value})

    def holds(self, letter: DeadLetter) -> bool:
        """Return True for a dead letter that matches."""
        return self.text.lower() in f"{letter.reason}\n{letter.detail}".lower()


class Preview(NamedTuple):
    """An action before its confirmation, and its dead letters."""

    act: Literal["redrive", "purge"]
    queue: str
    letters: Sequence[DeadLetter]
    who: str
    made_at: float
    whole: bool

    @property
    def bytes(self) -> int:
        """The bytes of all its dead letters."""
        return sum(map(_bytes, self.letters))

    def lightened(self) -> Preview:
        """Return the preview with at most ``PREVIEW_BYTES_MAX``, but at least one dead letter. A purge
        keeps only ids."""
        letters = self.letters
        if self.act == "purge":
            letters = [msgspec.structs.replace(letter, body=b"", detail="") for letter in letters]
        fits = sum(size <= PREVIEW_BYTES_MAX for size in accumulate(map(_bytes, letters))) or 1
        return self._replace(letters=letters[:fits], whole=self.whole and fits == len(letters))


class Previews:
    """The latest previews by their ids."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Preview] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, identity: str, preview: Preview) -> None:
        """Keep a new preview. Drop expired ones, and the oldest if there are too many."""
        self._kept[identity] = preview
        self._bytes += preview.bytes
        for oldest, one in list(self._kept.items())[:-1]:
            over = preview.made_at - one.made_at > PREVIEW_S
            if not over and len(self._kept) <= PREVIEWS_MAX and self._bytes <= PREVIEW_BYTES_MAX:
                break
            self._drop(oldest)

    def take(self, identity: str, who: str, now: float) -> Preview | None:
        """Return a preview, and drop it. None if the caller ``who`` has no such preview, or it has
        expired."""
        preview = self._drop(identity)
        if preview is None or preview.who != who or now - preview.made_at > PREVIEW_S:
            return None
        return preview

    def _drop(self, identity: str) -> Preview | None:
        preview = self._kept.pop(identity, None)
        self._bytes -= 0 if preview is None else preview.bytes
        return preview


class DeadLetterPages:
    """The pages of dead letters."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._previews = Previews()
        self._seen: OrderedDict[tuple[str, str], DeadLetter] = OrderedDict()
        self._seen_bytes = 0

    # --- the lists

    async def list(self, request: web.Request) -> web.Response:
        """Answer with the queues that have dead letters, or with the dead letters of one queue."""
        question = _asked(request)
        if not question.queue:
            return self._parts.renderer.page(
                request,
                "dead_letters.html",
                title="Dead letters",
                content=self._parts.renderer.safe(self._queues()),
            )
        queue = await self._queue(question.queue)
        known = self._parts.overview.queues.get(question.queue)
        hidden = queue.hides_dead_letters and not question.look
        found = FoundDeadLetters((), 0) if hidden else await self._find(question)
        return self._parts.renderer.page(
            request,
            "queue_dead_letters.html",
            title=f"Dead letters of {question.queue}",
            question=question,
            dead=known.dead if known is not None else None,
            hides=queue.hides_dead_letters,
            hidden=hidden,
            found=found,
            scanned=SCAN_MAX,
            paths=[_path(question.queue, letter) for letter in found.letters],
            look=f"/dead-letters?{question._replace(look=True).query}",
            first=f"/dead-letters?{question._replace(after='').query}" if question.after else "",
            later=f"/dead-letters?{question._replace(after=found.next).query}" if found.next else "",
        )

    async def part(self, request: web.Request) -> web.Response:
        """Answer with the queues that have dead letters."""
        return html_response(self._queues())

    def _queues(self) -> str:
        self._parts.attention.asked()
        dead = [queue for queue in self._parts.overview.queues.values() if queue.dead or queue.error]
        dead.sort(key=lambda queue: (-queue.dead, queue.stream))
        return self._parts.renderer.part("parts/dead_letters.html", queues=dead)

    async def _queue(self, name: str) -> Queue:
        """Return a queue that is known."""
        await check_queue(self._parts, name)
        return self._parts.services.queue(name)

    async def _find(self, question: DeadLettersQuestion, limit: int = ROWS) -> FoundDeadLetters:
        """Return up to ``limit`` dead letters, of up to ``SCAN_MAX`` that are looked through."""
        await check_queue(self._parts, question.queue)
        found = await operations.find(
            self._parts.services,
            question.queue,
            limit=limit,
            key=question.key or None,
            holds=question.holds if question.text else None,
            after=question.after,
            read_max=SCAN_MAX,
        )
        for letter in found.letters:
            self._keep(question.queue, letter)
        return found

    def _keep(self, queue: str, letter: DeadLetter) -> None:
        """Keep a listed dead letter, so that its page doesn't read the queue again."""
        if (queue, letter.id) in self._seen:
            self._seen_bytes -= _bytes(self._seen.pop((queue, letter.id)))
        self._seen[queue, letter.id] = letter
        self._seen_bytes += _bytes(letter)
        while len(self._seen) > SEEN_MAX or self._seen_bytes > SEEN_BYTES_MAX:
            self._seen_bytes -= _bytes(self._seen.popitem(last=False)[1])

    # --- one of them

    async def show(self, request: web.Request) -> web.Response:
        """Answer with one dead letter."""
        name, identity = request.query.get("queue", ""), request.query.get("id", "")
        letter = await self._dead_letter(name, identity, request.query.get("key"))
        return self._parts.renderer.page(
            request,
            "dead_letter.html",
            title=f"Dead letter {identity}",
            queue=name,
            letter=letter,
            attributes=operations.attributes(letter),
        )

    async def _dead_letter(self, name: str, identity: str, key: str | None) -> DeadLetter:
        if (letter := self._seen.get((name, identity))) is not None:
            return letter
        if name:
            await check_queue(self._parts, name)
            found = await operations.find(
                self._parts.services,
                name,
                limit=1,
                key=key or None,
                holds=lambda letter: letter.id == identity,
                read_max=SCAN_MAX,
            )
            for letter in found.letters:
                self._keep(name, letter)
                return letter
        raise RequestRefused(
            404, "no-letter", "Dead letter not found", "it was sent again, removed, or never existed"
        )

    # --- what is done to them

    async def preview(self, request: web.Request) -> web.Response:
        """Answer with the preview of an action: for the ticked dead letters, or for all of the list."""
        form = await request.post()
        name, what = field(form, "queue"), field(form, "do")
        if what not in ("redrive", "purge") or not name:
            raise OperationRefused("the form has no queue or no action")
        ids = [str(value) for value in form.getall("id", [])]
        question = DeadLettersQuestion(name, field(form, "key"), field(form, "text"), look=True)
        if field(form, "all") == "yes":
            found = await self._find(question, SCAN_MAX)
            letters, whole = list(found.letters), not found.next
        else:
            letters, whole = (
                [await self._dead_letter(name, identity, question.key) for identity in ids[:ROWS]],
                True,
            )
        if not letters:
            raise OperationRefused("no dead letter was chosen: tick some, or choose all of the list")
        letters.sort(key=in_order)
        preview = Preview(
            "redrive" if what == "redrive" else "purge",
            name,
            letters,
            caller_of(request).name,
            self._parts.clock.monotonic(),
            whole,
        ).lightened()
        warning = ""
        if preview.act == "redrive":
            chosen = [letter.id for letter in preview.letters]
            warning = (await operations.passed(self._parts.services, chosen)).warning
        identity = self._parts.clock.new_id()
        self._previews.keep(identity, preview)
        return self._parts.renderer.page(
            request,
            "preview.html",
            title="Send again" if preview.act == "redrive" else "Remove",
            preview=preview,
            identity=identity,
            warning=warning,
            shown=ROWS,
            back=f"/dead-letters?{question._replace(look=False).query}",
        )

    async def confirm(self, request: web.Request) -> web.Response:
        """Do the action of a preview."""
        form = await request.post()
        now = self._parts.clock.monotonic()
        preview = self._previews.take(field(form, "preview"), caller_of(request).name, now)
        if preview is None:
            raise OperationRefused(
                "this preview has expired or was used already: choose the dead letters again"
            )
        action = operations.REDRIVE_ACTION if preview.act == "redrive" else operations.PURGE_ACTION
        details = {"count": len(preview.letters), "ids": " ".join(letter.id for letter in preview.letters)}
        back = f"/dead-letters?{urlencode({'queue': preview.queue})}"

        async def done() -> str:
            return await self._do(preview)

        return await act(self._parts, request, action, preview.queue, done, back=back, details=details)

    async def _do(self, preview: Preview) -> str:
        services, letters = self._parts.services, preview.letters
        if preview.act == "purge":
            done, verb = await operations.purge_dead_letters(services, preview.queue, letters), "removed"
        else:
            done, verb = await operations.redrive_dead_letters(services, preview.queue, letters), "sent again"
        for letter in letters:
            if (seen := self._seen.pop((preview.queue, letter.id), None)) is not None:
                self._seen_bytes -= _bytes(seen)
        left = done.asked - done.done
        missing = f"; {left} no longer existed, or failed" if left else ""
        text = f"{done.done} of {done.asked} dead letters of {preview.queue} were {verb}{missing}"
        if done.failed:
            raise OperationRefused(f"{text}. {'; '.join(done.failed[:5])}")
        return text


def _path(queue: str, letter: DeadLetter) -> str:
    return f"/dead-letter?{urlencode({'queue': queue, 'id': letter.id, 'key': letter.key})}"


def _bytes(letter: DeadLetter) -> int:
    return len(letter.body) + len(letter.detail) + len(letter.reason)


def _asked(request: web.Request) -> DeadLettersQuestion:
    query = request.query
    return DeadLettersQuestion(
        query.get("queue", "")[:TEXT_MAX],
        query.get("key", "").strip()[:TEXT_MAX],
        query.get("text", "").strip()[:TEXT_MAX],
        query.get("after", "")[: 2 * TEXT_MAX],
        query.get("look", "") == "1",
    )


def groups(parts: ConsoleParts) -> list[Group]:
    """The routes of dead letters."""
    pages = DeadLetterPages(parts)
    return [
        (
            "read",
            [
                web.get("/dead-letters", pages.list),
                web.get("/parts/dead-letters", pages.part),
                web.get("/dead-letter", pages.show),
            ],
        ),
        (
            "operate",
            [
                web.post("/dead-letters/preview", pages.preview),
                web.post("/dead-letters/confirm", pages.confirm),
            ],
        ),
    ]
