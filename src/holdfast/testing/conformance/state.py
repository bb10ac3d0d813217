"""The promises of every state store."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.common.acts import Effect, RefusedEffect
from holdfast.common.message import RUN_DIGITS, SEQ_DIGITS, Span
from holdfast.errors import Fenced, TooLarge
from holdfast.ports.state import Logged, StateStore
from holdfast.rules.streams.ledger import COUNT_MAX, Aside, Checkpoint, Commit, Result, RunLog, Started, Timer

PATIENCE_S = 10.0
"""Seconds for which a test waits for an expected event."""

FOREVER = 1e11
"""A wall time that no clock reaches."""

KEY = "tracks/cam-1"

ODD_KEYS = ["s/k", "s/a/b//c", "s/käse \N{SNOWMAN}", "s/'\"%_\\;--", "s/*?[x]{y}:z", "s/..", "s/" + "x" * 512]


class StateFixtures:
    """The fixtures of all tests of a state store."""

    tick_s = 0.05
    """One step of time, in seconds: long enough for a few calls to be answered in."""

    @pytest.fixture
    def state(self) -> StateStore:
        """Override: make a fresh adapter."""
        raise NotImplementedError("define the fixture state")

    @pytest.fixture
    def other_state(self, state: StateStore) -> StateStore:
        """Override if several clients may share a store: another client of the same one."""
        return state


@pytest.mark.asyncio
class StateOpenings(StateFixtures):
    """Promises about openings and counted starts."""

    async def test_an_unknown_key_has_no_checkpoint(self, state: StateStore) -> None:
        assert await state.peek(KEY) is None
        assert await state.result(KEY, "0:1") is None
        assert await state.checkpoints() == []
        assert await state.results(0, 10) == []

    async def test_every_opening_takes_a_higher_epoch(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        first = await state.open(KEY, 0, "member-a")
        assert first == Checkpoint(KEY, epoch=first.epoch, member="member-a")
        assert 0 < first.epoch <= COUNT_MAX
        second = await other_state.open(KEY, first.epoch, "member-b")
        assert second == Checkpoint(KEY, epoch=second.epoch, member="member-b")
        assert first.epoch < second.epoch <= COUNT_MAX
        assert await state.peek(KEY) == second

    async def test_opening_at_another_epoch_is_refused(self, state: StateStore) -> None:
        for wrong in (1, 7):
            with pytest.raises(Fenced) as refusal:
                await state.open(KEY, wrong, "member-a")
            assert refusal.value.epoch == 0
        first = await state.open(KEY, 0, "member-a")
        second = await state.open(KEY, first.epoch, "member-b")
        for wrong in (
            0,
            first.epoch,
            second.epoch + 1,
        ):  # the first two: requests that were under way for long
            with pytest.raises(Fenced) as refusal:
                await state.open(KEY, wrong, "member-a")
            assert refusal.value.epoch == second.epoch
        assert await state.peek(KEY) == second

    async def test_one_of_several_openings_wins(self, state: StateStore, other_state: StateStore) -> None:
        clients = [state, other_state] * 4
        outcomes = await asyncio.gather(
            *(client.open(KEY, 0, f"member-{i}") for i, client in enumerate(clients)), return_exceptions=True
        )
        [opened] = [outcome for outcome in outcomes if isinstance(outcome, Checkpoint)]
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == len(clients) - 1
        assert await state.peek(KEY) == opened

    async def test_opening_returns_all_that_was_committed(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member-a")
        await state.commit(rich_commit(opened))
        reopened = await other_state.open(KEY, opened.epoch, "member-b")
        peeked = await state.peek(KEY)
        assert peeked is not None
        assert msgspec.structs.replace(reopened, at=0.0) == Checkpoint(
            KEY,
            epoch=reopened.epoch,
            number=1,
            commit_id="commit-1",
            log=RunLog(3, 10, 17, (Span(11, 11), Span(13, 15)), 2.5),
            past=(RunLog(1, 0, 9, (Span(4, 6),)), RunLog(2, 5, 5)),
            recent=("3:a", "3:b"),
            state=bytes(range(256)),
            state_version=4,
            started=Started("3:18", 1, opened.epoch),
            parked="",
            done=5,
            skipped=4,
            member="member-b",
            effects=(effect(1, 0), effect(1, 1)),
            timers=TIMERS,
            due=1234.5,
        )
        assert reopened.at > 0
        assert msgspec.structs.replace(peeked, recent=reopened.recent) == reopened

    async def test_commits_are_dated_by_the_store_s_clock(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member")
        before = await state.now(KEY)
        await state.commit(next_commit(opened))
        at = (await _standing(state)).at
        after = await other_state.now(KEY)
        assert before <= at <= after
        await asyncio.sleep(self.tick_s)
        assert await state.now(KEY) > after

    async def test_keys_may_hold_any_printable_text(self, state: StateStore) -> None:
        epochs = {}
        for key in ODD_KEYS:
            checkpoint = await state.open(key, 0, "member")
            epochs[key] = checkpoint.epoch
            await state.commit(next_commit(checkpoint, results=(Result("0:1", key.encode()),)))
        for key in ODD_KEYS:
            logged = await state.result(key, "0:1")
            assert logged is not None
            assert (logged.key, logged.result.body) == (key, key.encode())
            assert (await state.open(key, epochs[key], "member")).number == 1
        assert [c.key for c in await state.checkpoints()] == sorted(ODD_KEYS)

    # --- counted starts

    async def test_starts_of_a_head_are_counted_over_openings(self, state: StateStore) -> None:
        first = await state.open(KEY, 0, "member-a")
        assert await state.start(KEY, first.epoch, "0:1") == 1
        second = await state.open(KEY, first.epoch, "member-b")
        assert second.started == Started("0:1", 1, first.epoch), "an opening alone doesn't count"
        assert await state.start(KEY, second.epoch, "0:1") == 2
        assert await state.start(KEY, second.epoch, "0:2") == 1, "another head counts from 1"
        third = await state.open(KEY, second.epoch, "member-c")
        assert await state.start(KEY, third.epoch, "0:3") == 1
        suspects = (Started("0:1", 1, second.epoch - 1), Started("0:2", 1, second.epoch))
        assert (await _standing(state)).suspects == suspects
        assert await state.start(KEY, third.epoch, "0:1") == 2, "a suspect keeps its count"

    async def test_an_opening_counts_for_the_head_that_began_last(self, state: StateStore) -> None:
        """A message may fail, and wait to be tried again, while a timer ends the node."""
        epoch = last = 0
        for _ in range(3):
            epoch = (await state.open(KEY, epoch, "member")).epoch
            assert await state.start(KEY, epoch, "0:1") == 1
            last = await state.start(KEY, epoch, "0:2")
        assert last == 3
        standing = await _standing(state)
        assert (standing.started, standing.suspects) == (Started("0:2", 3, epoch), ())

    async def test_an_opening_counts_a_head_once(self, state: StateStore, other_state: StateStore) -> None:
        """The answer to a start may be lost, and the start repeated."""
        first = await state.open(KEY, 0, "member-a")
        for _ in range(3):
            assert await state.start(KEY, first.epoch, "0:1") == 1
        second = await state.open(KEY, first.epoch, "member-b")
        counts = await asyncio.gather(
            *(client.start(KEY, second.epoch, "0:1") for client in [state, other_state] * 3)
        )
        assert set(counts) == {2}
        assert await state.start(KEY, second.epoch, "0:2") == 1
        assert await state.start(KEY, second.epoch, "0:1") == 2, "another was begun between"
        await state.commit(next_commit(await _standing(state), starting="0:3"))
        assert await state.start(KEY, second.epoch, "0:3") == 1, "a commit had counted it"
        assert (await _standing(state)).started == Started("0:3", 1, second.epoch)

    async def test_a_commit_may_forget_every_start(self, state: StateStore) -> None:
        """A reset does this. Otherwise messages that come again would run alone, or count as begun, for
        ever."""
        result = Result("0:9", b"r")
        opened = await state.open(KEY, 0, "member-a")
        for head in ("0:1", "0:2", "0:3"):
            opened = await state.open(KEY, opened.epoch, "member-a")
            await state.start(KEY, opened.epoch, head)
        await state.commit(next_commit(await _standing(state)))
        assert [suspect.head for suspect in (await _standing(state)).suspects] == ["0:1", "0:2"]
        await state.commit(next_commit(await _standing(state), clear_suspects=True, results=(result,)))
        after = await _standing(state)
        assert (after.started, after.suspects, after.number) == (None, (), 2)
        assert (await state.open(KEY, after.epoch, "member-b")).suspects == ()
        assert await state.result(KEY, result.name) is not None
        assert await state.start(KEY, (await _standing(state)).epoch, "0:1") == 1, "it is new again"

    async def test_a_start_at_another_epoch_is_refused(self, state: StateStore) -> None:
        with pytest.raises(Fenced) as refusal:
            await state.start(KEY, 1, "0:1")
        assert refusal.value.epoch == 0
        first = await state.open(KEY, 0, "member-a")
        await state.start(KEY, first.epoch, "0:1")
        second = await state.open(KEY, first.epoch, "member-b")
        for wrong in (first.epoch, second.epoch + 1):
            with pytest.raises(Fenced) as refusal:
                await state.start(KEY, wrong, "0:1")
            assert refusal.value.epoch == second.epoch
        checkpoint = await state.peek(KEY)
        assert checkpoint is not None
        assert checkpoint.started == Started("0:1", 1, first.epoch)

    async def test_a_commit_counts_the_start_it_names(self, state: StateStore) -> None:
        checkpoint = await state.open(KEY, 0, "member")
        await state.start(KEY, checkpoint.epoch, "0:1")
        await state.commit(next_commit(checkpoint, starting="0:2"))
        assert (await _standing(state)).started == Started("0:2", 1, checkpoint.epoch)
        await state.commit(next_commit(await _standing(state)))
        assert (await _standing(state)).started is None

    async def test_a_commit_keeps_the_count_of_a_head_it_doesn_t_cover(self, state: StateStore) -> None:
        first = await state.open(KEY, 0, "member-a")
        await state.start(KEY, first.epoch, "0:2")
        second = await state.open(KEY, first.epoch, "member-b")
        await state.start(KEY, second.epoch, "0:2")
        await state.commit(next_commit(await _standing(state), starting="0:2"))
        assert (await _standing(state)).started == Started("0:2", 2, second.epoch)
        third = await state.open(KEY, second.epoch, "member-c")
        await state.commit(next_commit(third, starting="0:2"))
        assert await state.start(KEY, third.epoch, "0:2") == 3, "to name it again counted nothing"


@pytest.mark.asyncio
class StateCommits(StateFixtures):
    """Promises about commits."""

    async def test_commits_of_two_clients_apply_one_after_another(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        await state.open(KEY, 0, "member")
        for number in range(1, 6):
            client = state if number % 2 else other_state
            await client.commit(next_commit(await _standing(state), state=b"%d" % number, done=2, skipped=1))
            standing = await _standing(other_state)
            assert (standing.number, standing.state, standing.done, standing.skipped) == (
                number,
                b"%d" % number,
                2 * number,
                number,
            )

    async def test_only_the_next_number_is_accepted(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, state=b"one"))
        standing = await _standing(state)
        for wrong in (0, 1, 3):
            with pytest.raises(Fenced) as refusal:
                await state.commit(
                    msgspec.structs.replace(
                        next_commit(standing, state=b"wrong"), number=wrong, id=f"x-{wrong}"
                    )
                )
            assert refusal.value.epoch == opened.epoch
        assert await _standing(state) == standing

    async def test_a_repeated_commit_is_answered_as_done(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member")
        commit = next_commit(
            opened, state=b"one", results=(Result("0:1", b"r"),), identities=("a",), window=5, done=1
        )
        await state.commit(commit)
        standing = await state.open(KEY, opened.epoch, "member-b")
        again = msgspec.structs.replace(commit, epoch=standing.epoch)
        with pytest.raises(Fenced):  # the same bytes, by the old opening
            await state.commit(commit)
        await other_state.commit(again)
        assert await state.peek(KEY) in (standing, msgspec.structs.replace(standing, recent=()))
        assert len(await state.results(0, 10)) == 1

    async def test_many_repeats_at_once_apply_once(self, state: StateStore, other_state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        commit = next_commit(opened, results=(Result("0:1", b"r"),), done=1)
        await asyncio.gather(*(client.commit(commit) for client in [state, other_state] * 4))
        standing = await _standing(state)
        assert (standing.number, standing.done) == (1, 1)
        assert len(await state.results(0, 10)) == 1

    async def test_an_old_commit_after_the_next_is_refused(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        old = next_commit(opened, state=b"one")
        await state.commit(old)
        await state.commit(next_commit(await _standing(state), state=b"two"))
        with pytest.raises(Fenced):
            await state.commit(old)
        assert (await _standing(state)).state == b"two"

    async def test_an_old_epoch_can_t_commit(self, state: StateStore, other_state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member-a")
        standing = await other_state.open(KEY, opened.epoch, "member-b")
        with pytest.raises(Fenced) as refusal:
            await state.commit(next_commit(opened, state=b"zombie", results=(Result("0:1", b"zombie"),)))
        assert refusal.value.epoch == standing.epoch
        assert await _standing(state) == standing
        assert await state.results(0, 10) == []
        assert await state.result(KEY, "0:1") is None

    async def test_an_epoch_never_issued_can_t_commit(self, state: StateStore) -> None:
        unopened = next_commit(Checkpoint(KEY, epoch=1))
        with pytest.raises(Fenced) as refusal:
            await state.commit(unopened)
        assert refusal.value.epoch == 0
        assert await state.peek(KEY) is None
        standing = await state.open(KEY, 0, "member")
        with pytest.raises(Fenced) as refusal:
            await state.commit(msgspec.structs.replace(unopened, epoch=standing.epoch + 1))
        assert refusal.value.epoch == standing.epoch
        assert await _standing(state) == standing

    async def test_one_of_several_next_commits_wins(self, state: StateStore, other_state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        commits = [
            next_commit(opened, id=f"id-{i}", state=b"%d" % i, results=(Result(f"0:{i}", b"r"),))
            for i in range(8)
        ]
        outcomes = await asyncio.gather(
            *(client.commit(c) for client, c in zip([state, other_state] * 4, commits, strict=True)),
            return_exceptions=True,
        )
        [winner] = [c for c, outcome in zip(commits, outcomes, strict=True) if outcome is None]
        assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == len(commits) - 1
        assert (await _standing(state)).commit_id == winner.id
        assert [logged.result for logged in await state.results(0, 10)] == list(winner.results)

    async def test_commits_of_many_keys_at_once_all_apply(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        keys = [f"s/{i:02d}" for i in range(40)]

        async def work(client: StateStore, key: str) -> None:
            checkpoint = await client.open(key, 0, "member")
            for number in range(1, 4):
                result = Result(f"0:{number}", f"{key} {number}".encode())
                await client.commit(
                    next_commit(
                        msgspec.structs.replace(checkpoint, number=number - 1), results=(result,), done=1
                    )
                )

        await asyncio.gather(*(work([state, other_state][i % 2], key) for i, key in enumerate(keys)))
        assert [(c.key, c.number, c.done) for c in await state.checkpoints()] == [(key, 3, 3) for key in keys]
        logged = await _read_all(state)
        assert len(logged) == 3 * len(keys)
        for key in keys:
            assert [r.result.body for r in logged if r.key == key] == [
                f"{key} {n}".encode() for n in (1, 2, 3)
            ]

    async def test_state_is_kept_replaced_or_cleared(self, state: StateStore) -> None:
        await state.open(KEY, 0, "member")
        await state.commit(next_commit(await _standing(state), state=b"one", state_version=1))
        await state.commit(next_commit(await _standing(state)))
        standing = await _standing(state)
        assert (standing.state, standing.state_version) == (b"one", 1)
        await state.commit(next_commit(await _standing(state), state=b"", state_version=2))
        standing = await _standing(state)
        assert (standing.state, standing.state_version) == (b"", 2)
        await state.commit(next_commit(await _standing(state), clear_state=True))
        assert (await _standing(state)).state is None

    async def test_a_stream_may_be_parked_and_resumed(self, state: StateStore) -> None:
        await state.open(KEY, 0, "member")
        await state.commit(next_commit(await _standing(state), parked="state \N{SNOWMAN} doesn't load"))
        assert (await _standing(state)).parked == "state \N{SNOWMAN} doesn't load"
        await state.commit(next_commit(await _standing(state)))
        assert (await _standing(state)).parked == ""

    async def test_the_window_keeps_the_newest_identities(self, state: StateStore) -> None:
        await state.open(KEY, 0, "member")

        async def recent(identities: tuple[str, ...], window: int) -> tuple[str, ...]:
            standing = await state.peek(KEY)
            assert standing is not None
            await state.commit(next_commit(standing, identities=identities, window=window))
            opened = await state.open(KEY, standing.epoch, "member")
            assert tuple(await state.identities(KEY, 10)) == opened.recent
            return opened.recent

        assert await recent(("a", "b"), 4) == ("a", "b")
        assert await recent((), 4) == ("a", "b")
        assert await recent(("c", "d", "\N{SNOWMAN}"), 4) == ("b", "c", "d", "\N{SNOWMAN}")
        assert await state.identities(KEY, 2) == ["d", "\N{SNOWMAN}"]
        assert await state.identities("s/unknown", 2) == []
        assert await recent(("f",), 2) == ("\N{SNOWMAN}", "f")
        assert await recent((), 0) == ()

    async def test_runs_and_seqs_may_be_as_large_as_they_get(self, state: StateStore) -> None:
        last = 10**SEQ_DIGITS - 1
        await state.open(KEY, 0, "member")
        log = RunLog(10**RUN_DIGITS - 1, last - 5, last, (Span(last - 3, last - 1),))
        await state.commit(next_commit(await _standing(state), log=log))
        assert (await _standing(state)).log == log

    async def test_counts_stop_where_they_get_too_large(self, state: StateStore) -> None:
        await state.open(KEY, 0, "member")
        for _ in range(2):
            await state.commit(next_commit(await _standing(state), skipped=COUNT_MAX))
            assert (await _standing(state)).skipped == COUNT_MAX

    async def test_a_state_over_the_limit_is_refused(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        with pytest.raises(TooLarge, match=str(state.max_state_bytes)):
            await state.commit(next_commit(opened, state=bytes(state.max_state_bytes + 1)))
        assert await _standing(state) == opened
        await state.commit(next_commit(opened, state=bytes(state.max_state_bytes)))
        assert len((await _standing(state)).state or b"") == state.max_state_bytes


@pytest.mark.asyncio
class StateResults(StateFixtures):
    """Promises about the results log."""

    async def test_results_come_in_order_of_commits(self, state: StateStore, other_state: StateStore) -> None:
        keys = ("s/b", "s/a", "t/c")
        epochs = {key: (await state.open(key, 0, "member")).epoch for key in keys}
        wanted = []
        for number in (1, 2):
            for key, epoch in epochs.items():
                results = tuple(Result(f"0:{number}{part}", bytes([number, part, 255])) for part in (2, 1))
                await state.commit(next_commit(Checkpoint(key, epoch, number - 1), results=results))
                wanted += [(key, epoch, result) for result in results]
        logged = await _read_all(other_state)
        assert [(r.key, r.epoch, r.result) for r in logged] == wanted
        cursors = [r.cursor for r in logged]
        assert cursors == sorted(set(cursors))
        assert cursors[0] > 0
        assert await state.results(cursors[4], 3) == logged[5:8]
        assert await state.results(cursors[-1], 10) == []
        assert [(r.key, r.epoch, r.result) for r in await state.results(0, 100, stream="s")] == [
            entry for entry in wanted if entry[0] != "t/c"
        ]

    async def test_results_of_a_stream_leave_out_streams_of_similar_names(self, state: StateStore) -> None:
        for key in ("s/1", "s_/1", "s%/1", "sx/1", "S/1", "s"):
            opened = await state.open(key, 0, "member")
            await state.commit(next_commit(opened, results=(Result("0:1", b"r"),)))
        for stream in ("s", "s_", "s%"):
            assert [r.key for r in await state.results(0, 10, stream=stream)] == [f"{stream}/1"]

    async def test_a_waiting_reader_wakes_at_a_commit(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member")
        waiting = asyncio.create_task(state.results(0, 10, 3 * PATIENCE_S, "tracks"))
        await asyncio.sleep(0)  # it begins to wait
        other = await other_state.open("other/1", 0, "member")
        await other_state.commit(next_commit(other, results=(Result("0:1", b"no"),)))
        await other_state.commit(next_commit(opened, results=(Result("0:1", b"yes"),)))
        [logged] = await asyncio.wait_for(waiting, PATIENCE_S)
        assert logged.result == Result("0:1", b"yes")

    async def test_a_reader_waits_no_longer_than_asked(self, state: StateStore) -> None:
        async with asyncio.timeout(PATIENCE_S):
            assert await state.results(0, 10, self.tick_s) == []

    async def test_a_follower_misses_nothing_while_others_write(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        keys = [f"s/{i}" for i in range(6)]

        async def write(client: StateStore, key: str) -> None:
            opened = await client.open(key, 0, "member")
            for number in range(1, 11):
                results = (Result(f"0:{number}", b"r"),)
                await client.commit(next_commit(Checkpoint(key, opened.epoch, number - 1), results=results))

        async def follow() -> list[Logged]:
            seen: list[Logged] = []
            while len(seen) < 60:
                more = await state.results(seen[-1].cursor if seen else 0, 7, PATIENCE_S)
                assert more, "results are missing"
                seen += more
            return seen

        following = asyncio.create_task(follow())
        await asyncio.gather(*(write([state, other_state][i % 2], key) for i, key in enumerate(keys)))
        seen = await asyncio.wait_for(following, 2 * PATIENCE_S)
        for key in keys:
            assert [r.result.name for r in seen if r.key == key] == [f"0:{n}" for n in range(1, 11)]

    async def test_a_result_is_found_by_name(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        body = bytes(range(256))
        await state.commit(
            next_commit(opened, results=(Result("2:0007", body), Result("2:\N{SNOWMAN}", b"")))
        )
        logged = await state.result(KEY, "2:0007")
        assert logged is not None
        assert (logged.key, logged.epoch, logged.result, logged.at > 0) == (
            KEY,
            opened.epoch,
            Result("2:0007", body),
            True,
        )
        assert [logged] == await state.results(0, 1)
        odd = await state.result(KEY, "2:\N{SNOWMAN}")
        assert odd is not None
        assert odd.result.body == b""
        assert await state.result(KEY, "2:7") is None
        assert await state.result("tracks/other", "2:0007") is None

    async def test_a_result_made_again_replaces_the_old(self, state: StateStore) -> None:
        """This happens when an operator has reset a stream, which then runs again."""
        await state.open(KEY, 0, "member")
        for body in (b"old", b"new"):
            await state.commit(next_commit(await _standing(state), results=(Result("0:1", body),)))
        logged = await state.result(KEY, "0:1")
        assert logged is not None
        assert logged.result.body == b"new"
        assert (await _read_all(state))[-1] == logged


@pytest.mark.asyncio
class StateEffects(StateFixtures):
    """Promises about effects, timers, due keys, listing and expiry."""

    async def test_effects_are_pending_until_a_commit_drops_them(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member-a")
        await state.commit(next_commit(opened, effects=(effect(1, 0), effect(1, 1))))
        await state.commit(next_commit(await _standing(state), effects=(effect(2, 0),)))
        await state.commit(next_commit(await _standing(state), dropped=("id-1.0", "unknown")))
        reopened = await other_state.open(KEY, opened.epoch, "member-b")
        assert reopened.effects == (effect(1, 1), effect(2, 0))
        await other_state.commit(next_commit(reopened, dropped=("id-2.0", "id-1.1"), effects=(effect(4, 0),)))
        assert (await _standing(state)).effects == (effect(4, 0),)
        await other_state.commit(next_commit(await _standing(state), dropped=("id-4.0",)))
        assert (await _standing(state)).effects == ()
        assert (await other_state.open(KEY, reopened.epoch, "member-a")).effects == ()

    async def test_a_refused_effect_keeps_its_place(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, effects=(effect(1, 0), effect(1, 1), effect(1, 2))))
        refused = RefusedEffect("id-1.1", "no such target \N{SNOWMAN}")
        await state.commit(next_commit(await _standing(state), refused=(refused,), effects=(effect(2, 0),)))
        marked = msgspec.structs.replace(effect(1, 1), refused="no such target \N{SNOWMAN}")
        assert (await _standing(state)).effects == (effect(1, 0), marked, effect(1, 2), effect(2, 0))

    async def test_effects_of_a_repeated_or_refused_commit_are_not_added(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        first = next_commit(opened, effects=(effect(1, 0),))
        await state.commit(first)
        await state.commit(first)
        assert (await _standing(state)).effects == (effect(1, 0),)
        dropping = next_commit(await _standing(state), dropped=("id-1.0",), timers=TIMERS, due=5.0)
        for wrong in ({"epoch": opened.epoch + 1}, {"number": 1}, {"number": 3}):
            with pytest.raises(Fenced):
                await state.commit(
                    msgspec.structs.replace(dropping, id="other", effects=(effect(2, 0),), **wrong)
                )
        standing = await _standing(state)
        assert (standing.effects, standing.timers, standing.due) == ((effect(1, 0),), (), 0.0)

    async def test_effects_of_many_commits_stay_in_order(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        standing, sent = opened, list[Effect]()
        for number in range(1, 13):
            effects = tuple(effect(number, place) for place in range(number % 3 + 1))
            await state.commit(next_commit(standing, effects=effects))
            standing, sent = await _standing(state), [*sent, *effects]
        assert list(standing.effects) == sent
        await state.commit(next_commit(standing, dropped=tuple(one.id for one in sent[1::2])))
        assert list((await _standing(state)).effects) == sent[::2]

    async def test_timers_are_kept_replaced_or_cleared(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, timers=TIMERS))
        await state.commit(next_commit(await _standing(state)))
        assert (await _standing(state)).timers == TIMERS
        await state.commit(next_commit(await _standing(state), timers=TIMERS[1:]))
        assert (await _standing(state)).timers == TIMERS[1:]
        await state.commit(next_commit(await _standing(state), timers=()))
        assert (await _standing(state)).timers == ()

    # --- the due index

    async def test_no_key_is_due_that_no_commit_made_due(self, state: StateStore) -> None:
        assert await state.due(FOREVER, 10, 5.0) == []
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, effects=(effect(1, 0),), timers=TIMERS))
        assert await state.due(FOREVER, 10, 5.0) == []

    async def test_due_keys_are_handed_out_in_order_of_their_time(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        for key, due in (("s/late", 300.0), ("t/early", 100.0), ("s/middle", 200.0), ("s/not", 400.0)):
            opened = await state.open(key, 0, "member")
            await state.commit(next_commit(opened, due=due))
        assert await state.due(100.0, 10, 5.0) == []
        assert await other_state.due(400.0, 2, 1000.0) == ["t/early", "s/middle"]
        assert await state.due(400.0, 10, 1000.0) == ["s/late"]
        assert await other_state.due(400.0, 10, 1000.0) == []

    async def test_a_key_is_due_again_when_its_lease_ends(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, due=100.0))
        assert await state.due(200.0, 10, 50.0) == [KEY]
        assert (await _standing(state)).due == 250.0
        assert await other_state.due(250.0, 10, 50.0) == []
        assert await other_state.due(250.5, 10, 50.0) == [KEY]

    async def test_a_commit_replaces_the_time_and_the_lease(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(next_commit(opened, due=100.0))
        assert await state.due(200.0, 10, 500.0) == [KEY]
        await state.commit(next_commit(await _standing(state), due=150.0))
        assert await state.due(200.0, 10, 500.0) == [KEY]
        await state.commit(next_commit(await _standing(state)))
        assert await state.due(FOREVER, 10, 500.0) == []
        reopened = await state.open(KEY, opened.epoch, "member")
        assert reopened.due == 0.0

    async def test_callers_at_once_get_each_key_once(
        self, state: StateStore, other_state: StateStore
    ) -> None:
        keys = [f"s/{number}" for number in range(20)]
        for key in keys:
            opened = await state.open(key, 0, "member")
            await state.commit(next_commit(opened, due=100.0))
        pages = await asyncio.gather(
            *(client.due(200.0, 4, 1000.0) for client in [state, other_state] * 6),
        )
        leased = [key for page in pages for key in page]
        assert len(leased) == len(set(leased))
        while more := await state.due(200.0, 4, 1000.0):
            leased += more
        assert sorted(leased) == sorted(keys)

    # --- listing and expiry

    async def test_checkpoints_are_listed_by_page(self, state: StateStore) -> None:
        keys = [f"s/{i}" for i in (3, 1, 20, 2, 10)] + ["t/é", "t/z", "T/a"]
        for key in keys:
            opened = await state.open(key, 0, "member")
            more = {"identities": ("a",), "window": 1, "effects": (effect(1, 0),)}
            await state.commit(next_commit(opened, state=b"big", **more))
        listed: list[Checkpoint] = []
        while page := await state.checkpoints(listed[-1].key if listed else "", 3):
            assert len(page) <= 3
            listed += page
        assert [c.key for c in listed] == sorted(keys)
        assert {(c.number, c.state, c.recent, c.effects) for c in listed} == {(1, None, (), ())}
        assert await state.checkpoints() == listed

    async def test_expiry_drops_old_results_only(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member")
        await state.commit(
            next_commit(opened, state=b"s", results=(Result("0:1", b"a"), Result("0:2", b"b")))
        )
        [first, _] = await state.results(0, 10)
        assert await state.expire(first.at, 0.0) == (0, 0)
        assert len(await state.results(0, 10)) == 2
        assert await state.expire(FOREVER, 0.0) == (2, 0)
        assert await state.results(0, 10) == []
        assert await state.result(KEY, "0:1") is None
        assert (await _standing(state)).state == b"s"
        await state.commit(next_commit(await _standing(state), results=(Result("0:3", b"c"),)))
        [later] = await state.results(first.cursor + 1, 10)
        assert later.result == Result("0:3", b"c")

    async def test_an_expired_checkpoint_leaves_its_epoch_and_number(self, state: StateStore) -> None:
        opened = await state.open(KEY, 0, "member-a")
        commit = msgspec.structs.replace(rich_commit(opened), effects=(), timers=(), due=0.0)
        await state.commit(commit)
        standing = await _standing(state)
        assert await state.expire(0.0, standing.at) == (0, 0)
        assert await _standing(state) == standing
        assert await state.expire(0.0, FOREVER) == (0, 1)
        assert await state.expire(0.0, FOREVER) == (0, 0)
        with pytest.raises(Fenced):
            await state.open(KEY, 0, "member-b")
        expired = await state.open(KEY, opened.epoch, "member-b")
        assert expired.epoch > opened.epoch
        assert expired.number == 1
        assert (expired.log, expired.past, expired.recent, expired.state) == (None, (), (), None)
        with pytest.raises(Fenced):
            await state.commit(commit)
        await state.commit(next_commit(expired, state=b"new"))
        assert (await _standing(state)).number == 2

    async def test_a_checkpoint_with_something_to_do_never_expires(self, state: StateStore) -> None:
        acts: dict[str, dict[str, Any]] = {
            "s/timer": {"timers": TIMERS},
            "s/effect": {"effects": (effect(1, 0),)},
            "s/due": {"due": 9.0},
        }
        for key, content in acts.items():
            await state.commit(next_commit(await state.open(key, 0, "member"), **content))
        assert await state.expire(0.0, FOREVER) == (0, 0)
        for key in acts:
            standing = await state.peek(key)
            assert standing is not None
            cleared = next_commit(standing, dropped=("id-1.0",), timers=())
            await state.commit(cleared)
        assert await state.expire(0.0, FOREVER) == (0, 3)


class StateConformance(StateOpenings, StateCommits, StateResults, StateEffects):
    """Every promise of the state store port. Fixture: ``state``, new and empty, with a small
    ``max_state_bytes`` (1 MiB, say; at least 64 kB)."""


def next_commit(standing: Checkpoint, **changes: Any) -> Commit:
    """Return the next commit after a checkpoint, empty except for ``changes``."""
    number = standing.number + 1
    plain = Commit(standing.key, standing.epoch, number, f"commit-{number}", standing.log, standing.past)
    return msgspec.structs.replace(plain, **changes)


def rich_commit(standing: Checkpoint) -> Commit:
    """Return the next commit after a checkpoint, with a value in every field."""
    return next_commit(
        standing,
        log=RunLog(3, 10, 17, (Span(11, 11), Span(13, 15)), 2.5),
        past=(RunLog(1, 0, 9, (Span(4, 6),)), RunLog(2, 5, 5)),
        identities=("3:a", "3:b"),
        window=8,
        state=bytes(range(256)),
        state_version=4,
        results=(Result("3:16", b"\0r"), Result("3:17", b"")),
        aside=(Aside("3:11", "gap"), Aside("3:13", "failed \N{SNOWMAN}")),
        starting="3:18",
        done=5,
        skipped=4,
        effects=(effect(1, 0), effect(1, 1)),
        timers=TIMERS,
        due=1234.5,
    )


TIMERS = (
    Timer("silent \N{SNOWMAN}", 1764000000.123456, b"\0\xff", "7.1.0"),
    Timer("nightly", 1764000001.0, b"", "7.1.1"),
)


def effect(number: int, place: int) -> Effect:
    """Return an effect with a value in every field, as the commit ``number`` adds it at ``place``."""
    return Effect(
        number,
        place,
        id=f"id-{number}.{place}",
        target="alerts \N{SNOWMAN}",
        key="door/1",
        body=b"\0\xff{}",
        cause="3:17",
        at=1764000000.123456,
        not_before=1764000001.5,
        hops=2,
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )


async def _standing(state: StateStore) -> Checkpoint:
    checkpoint = await state.peek(KEY)
    assert checkpoint is not None
    return checkpoint


async def _read_all(state: StateStore) -> list[Logged]:
    logged: list[Logged] = []
    while more := await state.results(logged[-1].cursor if logged else 0, 7):
        logged += more
    return logged
