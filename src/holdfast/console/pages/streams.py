"""The list of all streams, and the page of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from urllib.parse import urlencode

from aiohttp import web

from holdfast.console.access import Group
from holdfast.console.api.streams import listed
from holdfast.console.index import (
    SORTS,
    STANDINGS,
    Question,
    Sort,
    Standing,
)
from holdfast.console.pages.acting import action_route, field, whole_number
from holdfast.console.parts import ConsoleParts
from holdfast.console.rendering import html_response, stream_path
from holdfast.console.timeline import life_of
from holdfast.http.problem import RequestRefused
from holdfast.operate import streams as operations
from holdfast.operate.explanation import Why, explain
from holdfast.operate.records import split_key
from holdfast.rules.streams.ledger import Checkpoint

ROWS = 50
RESULTS = 10
LISTED = 50
"""The most timers or pending effects on the page of a stream."""

TEXT_MAX = 600
OFFSET_MAX = 10**11 - 1
COLUMNS: tuple[tuple[Sort | None, str, bool], ...] = (
    ("key", "Stream", False),
    ("owner", "Owner", False),
    (None, "Place", True),
    ("done", "Done", True),
    ("skipped", "Skipped", True),
    ("quiet", "Quiet for", True),
    ("lag", "Lag", True),
    ("waits", "Status", False),
)
"""The columns of the list: by what they sort, their titles, and whether they hold numbers."""

STANDING_NAMES: dict[Standing, str] = {
    "all": "All",
    "parked": "Parked",
    "waiting": "Waiting",
    "effects": "With pending effects",
    "unowned": "On no node",
}


class StreamPages:
    """The pages of streams."""

    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    # --- the list

    async def list(self, request: web.Request) -> web.Response:
        """Answer with the list."""
        question, offset = _asked(request)
        return self._parts.renderer.page(
            request,
            "streams.html",
            title="Streams",
            question=question,
            standings=STANDING_NAMES,
            names=sorted(self._parts.index.names),
            part_path=f"/parts/streams?{_query(question, offset)}",
            content=self._parts.renderer.safe(await self._rows(question, offset)),
        )

    async def part(self, request: web.Request) -> web.Response:
        """Answer with the rows."""
        return html_response(await self._rows(*_asked(request)))

    async def _rows(self, question: Question, offset: int) -> str:
        self._parts.attention.asked()
        return await self._parts.cache.get((question, offset), partial(self._make_rows, question, offset))

    async def _make_rows(self, question: Question, offset: int) -> str:
        index = self._parts.index
        found = index.find(question, offset, ROWS)
        last = max(0, (found.total - 1) // ROWS * ROWS)
        places = {
            "first": 0 if found.offset else None,
            "earlier": found.offset - ROWS if found.offset else None,
            "later": found.offset + ROWS if found.offset < last else None,
            "last": last if found.offset < last else None,
        }
        return self._parts.renderer.part(
            "parts/streams.html",
            rows=[listed(index, stream, self._parts.clock.wall()) for stream in found.streams],
            total=found.total,
            first=found.offset + 1,
            pages={
                name: f"/streams?{_query(question, place)}" if place is not None else ""
                for name, place in places.items()
            },
            columns=[
                {
                    "title": title,
                    "number": is_number,
                    "sorted": ("descending" if question.down else "ascending")
                    if sort == question.sort
                    else "",
                    "path": f"/streams?{_query(_by(question, sort))}" if sort else "",
                }
                for sort, title, is_number in COLUMNS
            ],
            age_s=index.age_s,
        )

    # --- one stream

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the page of one stream."""
        key = _key(request.query.get("key", ""))
        content = await self._stream(key)
        known = self._parts.index.get(key)
        owner = self._parts.index.owner(known) if known is not None else None
        members = sorted(
            {member.name for member in self._parts.overview.members if not member.foreign},
            key=lambda name: (owner is not None and name == owner.name, name),  # it is there already
        )
        return self._parts.renderer.page(
            request,
            "stream.html",
            title=key,
            key=key,
            actions=[each for each in operations.ACTIONS if members or each is not operations.move],
            members=members,
            part_path=f"/parts/stream?{urlencode({'key': key})}",
            content=self._parts.renderer.safe(content),
        )

    async def show_part(self, request: web.Request) -> web.Response:
        """Answer with what changes on it."""
        return html_response(await self._stream(_key(request.query.get("key", ""))))

    async def _stream(self, key: str) -> str:
        self._parts.attention.asked()
        return await self._parts.cache.get(("stream", key), partial(self._make_stream, key))

    async def _make_stream(self, key: str) -> str:
        services, now = self._parts.services, self._parts.clock.wall()
        checkpoint = await services.state().peek(key)
        if checkpoint is None and not await self._is_known(key):
            raise RequestRefused(
                404, "no-stream", "Stream not found", f"nothing is known of {key}; the list shows all"
            )
        if checkpoint is not None:
            self._parts.index.take(checkpoint, now)
        point = checkpoint or Checkpoint(key)
        why = await explain(services, key)
        name, plain = split_key(key)
        return self._parts.renderer.part(
            "parts/stream.html",
            key=key,
            why=why,
            sentences=why.sentences,
            off=" ".join(self._off(why)),
            point=point,
            lag=self._parts.index.lags.get(key),
            now=now,
            results=await operations.latest_results(services, point, RESULTS),
            events=await life_of(services, self._parts.index, point, why),
            letters_path=f"/dead-letters?{urlencode({'queue': name, 'key': plain})}",
            timers=sorted(point.timers, key=lambda timer: timer.at)[:LISTED],
            effects=[
                operations.effect_record(effect, why.target_errors) for effect in point.effects[:LISTED]
            ],
        )

    def _off(self, why: Why) -> Iterable[str]:
        """Yield what can't be done to a stream as it stands."""
        yield "pause" if why.parked else "resume"
        nodes = [member for member in self._parts.overview.members if not member.foreign]
        if why.here_s is None or len(nodes) < 2:
            yield "move"
        if not why.pending_effects:
            yield "drop-effects"

    async def _is_known(self, key: str) -> bool:
        """Return True for a stream without a checkpoint that is owned, or waits for a node."""
        return (
            key in self._parts.index.waits or await self._parts.services.coordinator().lookup(key) is not None
        )


async def _subject(form: Mapping[str, object]) -> tuple[str, str]:
    """Return the stream that a form names, and the path of its page."""
    key = _key(field(form, "key"))
    return key, stream_path(key)


def _key(text: str) -> str:
    stream, key = split_key(text)
    if not (stream and key) or len(text) > TEXT_MAX * 2:
        raise RequestRefused(404, "no-stream", "Stream not found", "a stream is named STREAM/KEY")
    return text


def _asked(request: web.Request) -> tuple[Question, int]:
    """Return which streams a request asks for, and from which place on. What makes no sense is ignored, as
    people edit addresses."""
    query = request.query
    sort, standing = query.get("sort", "key"), query.get("standing", "all")
    offset = whole_number(query.get("from", ""), OFFSET_MAX) or 0
    question = Question(
        text=query.get("text", "").strip()[:TEXT_MAX],
        stream=query.get("stream", "").strip()[:TEXT_MAX],
        standing=standing if standing in STANDINGS else "all",
        sort=sort if sort in SORTS else "key",
        down=query.get("down", "") == "1",
    )
    return question, offset


def _query(question: Question, offset: int = 0) -> str:
    asked: dict[str, str] = {}
    if question.text:
        asked["text"] = question.text
    if question.stream:
        asked["stream"] = question.stream
    if question.standing != "all":
        asked["standing"] = question.standing
    if question.sort != "key":
        asked["sort"] = question.sort
    if question.down:
        asked["down"] = "1"
    if offset:
        asked["from"] = str(offset)
    return urlencode(asked)


def _by(question: Question, sort: Sort) -> Question:
    """The same question in the order of another column; by the same one, the other way round."""
    if sort == question.sort:
        return question._replace(down=not question.down)
    return question._replace(sort=sort, down=sort in ("done", "skipped", "quiet", "lag", "waits"))


def groups(parts: ConsoleParts) -> list[Group]:
    """The routes of streams."""
    pages = StreamPages(parts)
    return [
        (
            "read",
            [
                web.get("/streams", pages.list),
                web.get("/parts/streams", pages.part),
                web.get("/stream", pages.show),
                web.get("/parts/stream", pages.show_part),
            ],
        ),
        ("operate", [action_route(parts, action, "/stream", _subject) for action in operations.ACTIONS]),
    ]
