"""A small staged world with known truth: people walk past pillars under changing light.

A scene is a pure function of its parameters: the same ones give the same pixels and the same truth.
People differ in clothes, size and pace, cross one another, vanish behind pillars and come out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from holdfast.vision.boxes import Box

Pixels: TypeAlias = NDArray[np.uint8]

VISIBLE_MIN = 0.25
"""An object is part of a frame's truth when at least this share of it can be seen."""

_GAITS = 8
_NOISES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The parameters of a scene.

    ``people`` walk through in ``seconds``; ``noise`` is the sensor's standard deviation in grey levels;
    ``light`` makes the light drift and switch. Sizes are in pixels.
    """

    seed: int
    seconds: float = 8.0
    fps: int = 25
    width: int = 320
    height: int = 180
    people: int = 5
    pillars: int = 1
    noise: float = 5.0
    light: bool = True

    def __post_init__(self) -> None:
        if self.seconds * self.fps < 1 or min(self.people, self.pillars) < 0 or self.noise < 0:
            raise ValueError(f"a scene needs a frame, and no negative counts or noise: {self}")
        if self.width < 64 or self.height < 64 or self.width % 2 or self.height % 2:
            raise ValueError(f"a scene's width and height must be even and at least 64: {self}")

    @property
    def frames(self) -> int:
        """The number of its frames."""
        return round(self.seconds * self.fps)


@dataclass(frozen=True, slots=True)
class Staged:
    """One frame: RGB pixels of shape (height, width, 3), and the box of what is visible of each object."""

    pixels: Pixels
    truth: dict[int, Box]


def stage(scene: Scene) -> Iterator[Staged]:
    """Play the scene frame by frame."""
    rng = np.random.default_rng(scene.seed)
    backdrop = _backdrop(scene, rng)
    pillars = _pillars(scene, rng)
    people = _people(scene, rng)
    gains = _gains(scene, rng)
    noises = rng.normal(0, scene.noise, (_NOISES, *backdrop.shape[:2], 1)).round().astype(np.int16)
    levels = np.arange(256)
    for frame in range(scene.frames):
        pixels = backdrop.copy()
        owner = np.zeros(backdrop.shape[:2], np.int16)
        for person in people:
            person.draw(frame / scene.fps, pixels, owner)
        for pillar in pillars:
            pixels[:, pillar.left : pillar.right] = pillar.pixels
            owner[:, pillar.left : pillar.right] = 0
        truth = {person.id: box for person in people if (box := person.visible(frame / scene.fps, owner))}
        lit = np.clip(levels * gains[frame], 0, 255).astype(np.int16)[pixels]
        noise = np.roll(noises[frame % _NOISES], 37 * frame, axis=1)
        yield Staged(np.clip(lit + noise, 0, 255).astype(np.uint8), truth)


@dataclass(frozen=True, slots=True)
class _Pillar:
    left: int
    right: int
    pixels: Pixels


@dataclass(frozen=True, slots=True)
class _Person:
    id: int
    enters_s: float
    from_left: bool
    pace: float
    """Pixels a second."""
    feet: float
    """Where the feet are, in pixels from the top: nearer people stand lower and are drawn later."""
    sway: float
    gaits: list[tuple[Pixels, NDArray[np.bool_]]] = field(repr=False)
    """Pixels and mask of each phase of a step."""
    frame_width: int

    def place(self, time_s: float) -> tuple[int, int, int]:
        """Left and top of the figure, and the phase of the step."""
        height, width = self.gaits[0][1].shape
        walked = self.pace * (time_s - self.enters_s)
        left = walked - width if self.from_left else self.frame_width - walked
        top = self.feet - height + self.sway * np.sin(0.9 * (time_s - self.enters_s) + self.id)
        return round(left), round(float(top)), int(walked / self.pace * 1.4 * _GAITS) % _GAITS

    def draw(self, time_s: float, pixels: Pixels, owner: NDArray[np.int16]) -> None:
        """Paint the figure and mark its pixels as this person's."""
        if (window := self._window(time_s, owner.shape)) is None:
            return
        where, (figure, mask) = window
        pixels[where][mask] = figure[mask]
        owner[where][mask] = self.id

    def visible(self, time_s: float, owner: NDArray[np.int16]) -> Box | None:
        """The box of this person's pixels, or None where too little of the person can be seen."""
        if (window := self._window(time_s, owner.shape)) is None:
            return None
        where, _ = window
        mine = owner[where] == self.id
        if np.count_nonzero(mine) < VISIBLE_MIN * np.count_nonzero(self.gaits[0][1]):
            return None
        rows, columns = np.flatnonzero(mine.any(axis=1)), np.flatnonzero(mine.any(axis=0))
        top, left = where[0].start, where[1].start
        return (
            float(left + columns[0]),
            float(top + rows[0]),
            float(left + columns[-1] + 1),
            float(top + rows[-1] + 1),
        )

    def _window(
        self, time_s: float, shape: tuple[int, ...]
    ) -> tuple[tuple[slice, slice], tuple[Pixels, NDArray[np.bool_]]] | None:
        """The part of the frame the figure covers, and the part of the figure inside the frame."""
        left, top, phase = self.place(time_s)
        figure, mask = self.gaits[phase]
        x0, y0 = max(left, 0), max(top, 0)
        x1, y1 = min(left + mask.shape[1], shape[1]), min(top + mask.shape[0], shape[0])
        if time_s < self.enters_s or x0 >= x1 or y0 >= y1:
            return None
        inside = (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
        return (slice(y0, y1), slice(x0, x1)), (figure[inside], mask[inside])


def _texture(
    rng: np.random.Generator, shape: tuple[int, int], grain: float, contrast: float
) -> NDArray[np.float64]:
    """Smooth random relief around 0 with the given standard deviation."""
    relief = ndimage.gaussian_filter(rng.normal(size=shape), grain, mode="wrap")
    return np.asarray(relief * (contrast / relief.std()))


def _paint(grey: NDArray[np.float64], tint: NDArray[np.float64]) -> Pixels:
    return np.clip(grey[..., None] * tint, 0, 255).astype(np.uint8)


def _backdrop(scene: Scene, rng: np.random.Generator) -> Pixels:
    """A wall over a floor with joints that run towards the camera."""
    height, width = scene.height, scene.width
    horizon = round(height * 0.42)
    y, x = np.mgrid[0:height, 0:width]
    wall = 142 + 18 * np.sin(x / width * np.pi) - 0.06 * y
    depth = np.maximum(y - horizon, 0) / (height - horizon)
    floor = 104 + 34 * depth
    joints = np.abs(((x - width / 2) / (0.35 + depth)) % 44 - 22) < 0.8
    grey = np.where(y < horizon, wall, floor - 14 * joints)
    grey += _texture(rng, (height, width), 1.2, 4) + _texture(rng, (height, width), 9, 5)
    hues = 1 + rng.uniform(-0.10, 0.10, (2, 3))
    return _paint(grey, np.where((y < horizon)[..., None], hues[0], hues[1]))


def _pillars(scene: Scene, rng: np.random.Generator) -> list[_Pillar]:
    pillars = []
    for number in range(scene.pillars):
        width = round(scene.width * rng.uniform(0.055, 0.075))
        middle = scene.width * (number + 0.5 + rng.uniform(-0.2, 0.2)) / scene.pillars
        left = round(np.clip(middle - width / 2, 0, scene.width - width))
        round_shade = 0.75 + 0.45 * np.sin(np.linspace(0.4, 2.9, width))
        grey = 84 * round_shade + _texture(rng, (scene.height, width), 1.5, 4)
        pillars.append(_Pillar(left, left + width, _paint(grey, np.array([1.05, 1.0, 0.9]))))
    return pillars


def _people(scene: Scene, rng: np.random.Generator) -> list[_Person]:
    """Entries are spread over the scene; sides alternate, so that paths cross. Far people first."""
    people = []
    last_s = max(scene.seconds - 3.0, 0.35 * scene.seconds)
    for number in range(scene.people):
        depth = ((number * 0.38 + rng.uniform(0, 0.2)) % 1.0) * 0.9 + 0.05
        height = round(scene.height * (0.26 + 0.15 * depth))
        width = round(height * rng.uniform(0.40, 0.46))
        people.append(
            _Person(
                id=number + 1,
                enters_s=0.2 + last_s * (number + rng.uniform(0, 0.5)) / scene.people,
                from_left=number % 2 == 0,
                pace=scene.width * rng.uniform(0.14, 0.21) * (0.8 + 0.4 * depth),
                feet=scene.height * (0.62 + 0.36 * depth),
                sway=rng.uniform(0.5, 2.0),
                gaits=_figure(rng, height, width, walks_left=number % 2 == 1),
                frame_width=scene.width,
            )
        )
    return sorted(people, key=lambda person: person.feet)


def _figure(
    rng: np.random.Generator, height: int, width: int, *, walks_left: bool
) -> list[tuple[Pixels, NDArray[np.bool_]]]:
    """A person walking, in all phases of a step: head, textured coat, swinging legs."""
    dark = rng.random() < 0.6
    coat = rng.uniform(20, 55) if dark else rng.uniform(205, 245)
    legs = rng.uniform(25, 60) if rng.random() < 0.7 else rng.uniform(200, 235)
    skin = np.array([1.2, 0.95, 0.8]) * rng.uniform(60, 200)
    tint = rng.uniform(0.7, 1.3, 3)
    cloth = _texture(rng, (height, width), 1.0, 7)
    if rng.random() < 0.5:
        cloth += 9 * (np.arange(height) // 3 % 2)[:, None]  # stripes
    y, x = np.mgrid[0:height, 0:width]
    v, u = (y + 0.5) / height, (x + 0.5) / width - 0.5
    head = (u / 0.21) ** 2 + ((v - 0.10) / 0.10) ** 2 <= 1
    torso = (np.abs(u / 0.36) ** 3 + np.abs((v - 0.39) / 0.23) ** 3) <= 1
    gaits = []
    for phase in range(_GAITS):
        swing = 0.24 * np.sin(2 * np.pi * phase / _GAITS)
        reach = np.clip((v - 0.56) / 0.44, 0, 1)
        one, other = np.abs(u - 0.09 - swing * reach) < 0.12, np.abs(u + 0.09 + swing * reach) < 0.12
        leg = (one | other) & (v > 0.56)
        arm = (np.abs(u + 0.9 * swing * np.clip((v - 0.22) / 0.35, 0, 1)) < 0.09) & (v > 0.24) & (v < 0.60)
        pixels = _paint(np.where(leg & ~torso, legs, coat) + cloth, tint)
        pixels[arm] = np.clip(pixels[arm] * 0.8, 0, 255).astype(np.uint8)
        pixels[head] = np.clip(skin + cloth[head][:, None], 0, 255).astype(np.uint8)
        mask = head | torso | leg | arm
        gaits.append((pixels[:, ::-1], mask[:, ::-1]) if walks_left else (pixels, mask))
    return gaits


def _gains(scene: Scene, rng: np.random.Generator) -> NDArray[np.float64]:
    """The light of each frame: a slow drift, and a lamp that fails and comes back."""
    time_s = np.arange(scene.frames) / scene.fps
    if not scene.light:
        return np.ones(scene.frames)
    drift = 1 + 0.07 * np.sin(2 * np.pi * (time_s / rng.uniform(5, 9) + rng.random()))
    off_s = scene.seconds * rng.uniform(0.25, 0.5)
    on_s = off_s + scene.seconds * rng.uniform(0.2, 0.3)
    lamp = np.clip((time_s - off_s) / 0.25, 0, 1) - np.clip((time_s - on_s) / 0.25, 0, 1)
    return np.asarray(drift * (1 - rng.uniform(0.15, 0.28) * lamp))
