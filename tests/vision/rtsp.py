"""A camera: an RTSP server on loopback that sends H.264 over the connection of its one client.

As RFC 2326 and RFC 6184 have it, as far as a client asks: OPTIONS, DESCRIBE, SETUP (interleaved), PLAY.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from fractions import Fraction
from types import TracebackType
from typing import Self

import av
import numpy as np

WIDTH, HEIGHT, FPS = 64, 48, 25
CLOCK_HZ = 90_000
PAYLOAD = 96
PART_BYTES = 1200
BEGUN = 1_000_000
"""The first frame's timestamp: any number."""

SDP = f"""v=0
o=- 0 0 IN IP4 127.0.0.1
s=camera
c=IN IP4 127.0.0.1
t=0 0
a=control:*
m=video 0 RTP/AVP {PAYLOAD}
a=rtpmap:{PAYLOAD} H264/{CLOCK_HZ}
a=fmtp:{PAYLOAD} packetization-mode=1
a=control:track
""".replace("\n", "\r\n")


def pictures(count: int) -> list[list[bytes]]:
    """The units of ``count`` frames, each grey by its number, a key frame every fifth."""
    codec = av.CodecContext.create("libx264", "w")
    assert isinstance(codec, av.VideoCodecContext)
    codec.width, codec.height, codec.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    codec.time_base, codec.framerate = Fraction(1, FPS), Fraction(FPS)
    codec.options = {"tune": "zerolatency", "g": "5", "x264-params": "repeat-headers=1:annexb=1"}
    packets = []
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), 10 * number % 250, np.uint8))
        frame.pts = number
        packets += codec.encode(frame)
    packets += codec.encode()
    return [_units(bytes(packet)) for packet in packets]


class Server:
    """Serves ``shots``, one a connection: a number of frames, after which the connection ends ("cut") or
    stands still ("stall"); or it is refused before it begins ("refuse"), as all are after the last."""

    def __init__(self, shots: list[tuple[int, str]], password: str = "") -> None:
        self._shots = shots
        self._password = password
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._peer: socket.socket | None = None
        self.served = 0
        self.playing, self.twice = threading.Event(), threading.Event()
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self._listener.getsockname()[1]}/live"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _serve(self) -> None:
        while not self.ended.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peer = peer
            with peer:
                if self.served < len(self._shots):
                    count, end = self._shots[self.served]
                    self.served += 1
                    if end != "refuse":
                        self._talk(peer, count, end)

    def _talk(self, peer: socket.socket, count: int, end: str) -> None:
        try:
            for method, headers in _requests(peer):
                answer = [f"CSeq: {headers['cseq']}"]
                if self._password and "authorization" not in headers:
                    _reply(peer, "401 Unauthorized", [*answer, 'WWW-Authenticate: Basic realm="camera"'])
                    continue
                if method == "OPTIONS":
                    answer.append("Public: DESCRIBE, SETUP, PLAY, TEARDOWN")
                if method == "PLAY":
                    answer.append(f"RTP-Info: url={self.url}/track;seq=0;rtptime={BEGUN}")
                if method == "SETUP":
                    answer += ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1", "Session: 1"]
                _reply(peer, "200 OK", answer, SDP if method == "DESCRIBE" else "")
                if method == "PLAY":
                    (self.twice if self.playing.is_set() else self.playing).set()
                    for packet in _packets(count):
                        peer.sendall(packet)
                    if end == "stall":
                        peer.recv(1)  # until the camera is given up, or the server ends
                    return
        except OSError:
            pass


def _requests(peer: socket.socket) -> Iterator[tuple[str, dict[str, str]]]:
    with peer.makefile("rb") as lines:
        while request := lines.readline():
            headers = {}
            while (line := lines.readline().decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            yield request.decode().split()[0], headers


def _reply(peer: socket.socket, status: str, headers: list[str], body: str = "") -> None:
    lines = [f"RTSP/1.0 {status}", *headers]
    if body:
        lines += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
    peer.sendall("\r\n".join([*lines, "", body]).encode())


def _packets(count: int) -> Iterator[bytes]:
    """RTP packets, each with the four bytes that say how long it is."""
    sequence = 0
    for number, units in enumerate(pictures(count)):
        parts = [part for unit in units for part in _parts(unit)]
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            head = bytes([0x80, PAYLOAD | (0x80 if last else 0)]) + sequence.to_bytes(2)
            packet = head + (BEGUN + number * CLOCK_HZ // FPS).to_bytes(4) + b"\0\0\0\1" + part
            yield b"$\0" + len(packet).to_bytes(2) + packet
            sequence += 1


def _parts(unit: bytes) -> Iterator[bytes]:
    """A unit as it is, or in fragments (FU-A)."""
    if len(unit) <= PART_BYTES:
        yield unit
        return
    indicator, kind, rest = (unit[0] & 0xE0) | 28, unit[0] & 0x1F, unit[1:]
    for start in range(0, len(rest), PART_BYTES):
        first, last = start == 0, start + PART_BYTES >= len(rest)
        yield bytes([indicator, kind | first << 7 | last << 6]) + rest[start : start + PART_BYTES]


def _units(stream: bytes) -> list[bytes]:
    """The units between the start codes of a stream."""
    return [unit.rstrip(b"\0") for unit in stream.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1") if unit]
