"""Tasks from science, made from equations and renderers, whose bottleneck rank is known.

``TASKS[name](seed)`` is a :class:`Task`. The law of a task (spectra of substances, textures, places of sensors) never
changes; the seed draws its samples and its noise. Noise is added to the outputs alone: the best prediction of noisy
outputs is the function itself, and its rank stays what it is.

The rank is the smallest k such that Y = h(g(X)) with g: support of X → R^k and h continuous. It is at least the
dimension of what Y depends on, and larger where that closes up: a circle needs 2 numbers, a sphere or a torus 3. A ring
(a phase and a speed) needs no more than its dimension: it lies in the plane.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates

Array = NDArray[np.floating[Any]]
Rows = NDArray[np.int64]
#: Inputs, clean outputs, and the trajectory of each row or None.
Drawn = tuple[Array, Array, Rows | None]


@dataclass(frozen=True, eq=False)
class Task:
    """Data of a task with its truth.

    Attributes
    ----------
    X, Y : array (N, d_in), (N, d_out)
    groups : array (N,) or None
        Trajectory of each row.
    rank : int
        Bottleneck rank.
    dimension : int
        Of what Y depends on.
    why : str
        Why that is the rank.
    noise : float
        Standard deviation of the noise of Y, relative to each column's own (``common``: to all columns together).
    common : bool
        Columns are of one unit, such as pixels.
    options : mapping
        Arguments of `discover` that the task asks for.
    relevant : slice or None
        Columns of X that a plain net is given where all of them are too many for it; they are all that matter.
    """

    name: str
    X: Array
    Y: Array
    groups: Rows | None
    rank: int
    dimension: int
    why: str
    noise: float
    common: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    relevant: slice | None = None


@dataclass(frozen=True)
class Maker:
    """Makes the task from a seed, at its own level of noise or another."""

    name: str
    draw: Callable[[Generator], Drawn]
    rank: int
    dimension: int
    why: str
    noise: float = 0.0
    common: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    relevant: slice | None = None

    def __call__(self, seed: int = 0, *, noise: float | None = None) -> Task:
        """The task; another seed draws other samples of the same law."""
        level = self.noise if noise is None else noise
        key = zlib.crc32(self.name.encode())
        X, Y, groups = self.draw(default_rng([key, seed, 0]))
        spread = np.sqrt(Y.var(axis=0).mean()) if self.common else Y.std(axis=0)
        Y = Y + level * spread * default_rng([key, seed, 1]).standard_normal(Y.shape)
        truth = self.rank, self.dimension, self.why
        more = self.common, self.options, self.relevant
        return Task(self.name, X, Y, groups, *truth, level, *more)


TASKS: dict[str, Maker] = {}


def task(name: str, **about: Any) -> Callable[[Callable[[Generator], Drawn]], Callable[[Generator], Drawn]]:
    """Enter the decorated function into the catalogue."""

    def enter(draw: Callable[[Generator], Drawn]) -> Callable[[Generator], Drawn]:
        TASKS[name] = Maker(name, draw, **about)
        return draw

    return enter


def law(name: str) -> Generator:
    """Randomness of what never changes."""
    return default_rng(zlib.crc32(name.encode()))


def flow(velocity: Callable[[Array], Array], state: Array, times: Array, step: float = 0.01) -> Array:
    """States (times, N, d) of s' = velocity(s) from ``state`` (N, d) at time 0, by Runge–Kutta; times increase."""
    out, now = [], 0.0
    for t in times:
        count = math.ceil((t - now) / step - 1e-9)
        h = (t - now) / max(count, 1)
        for _ in range(count):
            a = velocity(state)
            b = velocity(state + h / 2 * a)
            c = velocity(state + h / 2 * b)
            state = state + h / 6 * (a + 2 * b + 2 * c + velocity(state + h * c))
        out.append(state)
        now = t
    return np.array(out)


def windows(runs: Array, count: int, past: int, future: list[int]) -> Drawn:
    """Rows of delays from runs (T, trajectories, d): ``past`` moments in a row, and those ``future`` steps after."""
    moments = runs.transpose(1, 0, 2)
    X = [moments[:, j : j + past].reshape(len(moments), -1) for j in range(count)]
    Y = [moments[:, [j + past - 1 + f for f in future]].reshape(len(moments), -1) for j in range(count)]
    groups = np.tile(np.arange(len(moments)), count)
    order = np.argsort(groups, kind="stable")
    return np.concatenate(X)[order], np.concatenate(Y)[order], groups[order]


def ball(rng: Generator, samples: int, dimension: int) -> Array:
    """Points spread evenly over the unit ball."""
    Z = rng.standard_normal((samples, dimension))
    return Z / np.linalg.norm(Z, axis=1, keepdims=True) * rng.random((samples, 1)) ** (1 / dimension)


def spots(places: Array, width: float, x: Array, y: Array) -> Array:
    """Pictures (N, pixels) of one round spot each, at places (N, 2)."""
    gx = np.exp(-((x - places[:, :1]) ** 2) / (2 * width**2))
    gy = np.exp(-((y - places[:, 1:]) ** 2) / (2 * width**2))
    return (gy[:, :, None] * gx[:, None, :]).reshape(len(places), -1)


# Motion, seen


def pendulum_pictures(angles: Array) -> Array:
    """A round bob on a circle of radius 1 (N, 160)."""
    places = np.column_stack([np.sin(angles), -np.cos(angles)])
    return spots(places, 0.25, np.linspace(-1.3, 1.3, 16), np.linspace(-1.3, 0.3, 10))


@task(
    "pendulum-frames",
    rank=2,
    dimension=2,
    common=True,
    noise=0.02,
    why="Two frames show angle and velocity, a disc of swings below a radian; two later frames show both again.",
)
def pendulum_frames(rng: Generator) -> Drawn:
    """Two frames of a pendulum, and two later ones."""
    start = 1.0 * ball(rng, 200, 2)
    runs = flow(lambda s: np.column_stack([s[:, 1], -np.sin(s[:, 0])]), start, 0.5 * np.arange(14))
    pictures = np.array([pendulum_pictures(s[:, 0]) for s in runs])
    return windows(pictures, 10, 2, [2, 3])


@task(
    "pendulum-turning",
    rank=2,
    dimension=2,
    why="Angle on a circle and velocity on an interval: a cylinder, which is a ring in the plane, so 2 and not 3.",
)
def pendulum_turning(rng: Generator) -> Drawn:
    """Markers on a pendulum that turns over, always forward, at two moments; and at two later ones."""
    start = np.column_stack([rng.uniform(-np.pi, np.pi, 300), np.zeros(300)])
    # Above the energy of the upright position, from just over it to fast.
    start[:, 1] = np.sqrt(2 * (rng.uniform(1.3, 6.0, 300) + np.cos(start[:, 0])))
    runs = flow(lambda s: np.column_stack([s[:, 1], -np.sin(s[:, 0])]), start, 0.25 * np.arange(12))
    markers = np.array([np.column_stack([f(s[:, 0] + a) for f in (np.cos, np.sin) for a in (0, 1)]) for s in runs])
    return windows(markers, 6, 2, [2, 5])


@task(
    "two-pendula-frames",
    rank=4,
    dimension=4,
    common=True,
    why="Two angles and two velocities in a ball: two frames show them, two later frames show them again.",
)
def two_pendula_frames(rng: Generator) -> Drawn:
    """Frames of two pendula joined by a weak spring."""
    start = 1.0 * ball(rng, 500, 4)

    def velocity(s: Array) -> Array:
        spring = 0.3 * (s[:, 0] - s[:, 1])
        return np.column_stack([s[:, 2], s[:, 3], -np.sin(s[:, 0]) - spring, -np.sin(s[:, 1]) + spring])

    runs = flow(velocity, start, 0.6 * np.arange(10))
    x, y = np.linspace(-1.1, 1.1, 10), np.linspace(-1.2, -0.3, 6)
    seen = [
        np.hstack([spots(np.column_stack([np.sin(a), -np.cos(a)]), 0.35, x, y) for a in (s[:, 0], s[:, 1])])
        for s in runs
    ]
    return windows(np.array(seen), 6, 2, [2, 3])


@task(
    "bouncing-ball-frames",
    rank=2,
    dimension=2,
    common=True,
    noise=0.03,
    why="Height and velocity of a ball in the air, a rectangle; where it is before and after the bounce tells both.",
)
def bouncing_ball_frames(rng: Generator) -> Drawn:
    """Two frames of a ball in the air, and three later ones, by when most have bounced on the floor."""
    start, velocity = rng.uniform([[0.5], [-0.9]], [[1.3], [0.7]], (2, 1500))
    # Height h − τ²/2 for τ in [−T, T], with T = √(2h), over and over.
    top = start + velocity**2 / 2
    half = np.sqrt(2 * top)
    tau = (-velocity + np.array([0.0, 0.3, 0.8, 1.2, 1.6])[:, None] + half) % (2 * half) - half
    y, x = np.linspace(-0.1, 1.7, 18), np.linspace(-0.3, 0.3, 4)
    X, Y = ([spots(np.column_stack([0 * h, h]), 0.2, x, y) for h in part] for part in np.split(top - tau**2 / 2, [2]))
    return np.hstack(X), np.hstack(Y), None


@task(
    "fan-frames",
    rank=2,
    dimension=2,
    common=True,
    noise=0.01,
    why="Phase on a circle and a speed on an interval: a ring, which lies in the plane.",
)
def fan_frames(rng: Generator) -> Drawn:
    """Two frames of a fan with three blades that turns at different speeds; two later frames."""
    samples = 1500
    phase, speed = rng.uniform(0, 2 * np.pi, samples), rng.uniform(0.25, 0.6, samples)
    y, x = np.meshgrid(np.linspace(-1, 1, 14), np.linspace(-1, 1, 14), indexing="ij")
    radius, angle = np.hypot(x, y).ravel(), np.arctan2(y, x).ravel()
    envelope = radius**2 * np.exp(-3 * radius**2)

    def picture(turn: Array) -> Array:
        return envelope * (1 + np.cos(3 * angle - turn[:, None]))

    X = np.hstack([picture(phase), picture(phase + speed)])
    return X, np.hstack([picture(phase + k * speed) for k in (4, 6)]), None


@task(
    "photograph-window",
    rank=2,
    dimension=2,
    common=True,
    why="The place of the window in a square: no two places show the same, and the window beside it tells the place.",
)
def photograph_window(rng: Generator) -> Drawn:
    """What a window shows of a texture, and what the one beside it shows."""
    image = gaussian_filter(law("photograph").standard_normal((80, 80)), 6.0)
    place = rng.uniform(0, 20, (2000, 2))
    grid = np.stack(np.meshgrid(np.arange(0, 24, 2.0), np.arange(0, 24, 2.0), indexing="ij"))

    def window(shift: tuple[float, float]) -> Array:
        at = place[:, :, None, None] + 8 + np.array(shift)[:, None, None] + grid
        return map_coordinates(image, at.transpose(1, 0, 2, 3).reshape(2, -1), order=3).reshape(len(place), -1)

    return window((0.0, 0.0)), window((5.0, 25.0)), None


# Motion, measured


@task(
    "double-pendulum-delays",
    rank=4,
    dimension=4,
    why="Two angles and two velocities in a ball, with no turning over; two later moments of both angles tell them.",
)
def double_pendulum_delays(rng: Generator) -> Drawn:
    """Angles of a double pendulum at five moments, and at four later ones."""

    def velocity(s: Array) -> Array:
        a, b, p, q = s.T
        d, m = a - b, 3 - np.cos(2 * (a - b))
        pp = (-3 * np.sin(a) - np.sin(a - 2 * b) - 2 * np.sin(d) * (q**2 + p**2 * np.cos(d))) / m
        qq = 2 * np.sin(d) * (2 * p**2 + 2 * np.cos(a) + q**2 * np.cos(d)) / m
        return np.column_stack([p, q, pp, qq])

    runs = flow(velocity, 1.0 * ball(rng, 300, 4), 0.15 * np.arange(40))[:, :, :2]
    X, Y, groups = windows(runs, 22, 5, [3, 6, 9, 12])
    return X[::2], Y[::2], None if groups is None else groups[::2]


@task(
    "lorenz-delays",
    rank=3,
    dimension=3,
    noise=0.01,
    why="States fill a box of R³, before the flow has drawn them to its attractor; what follows tells all three.",
)
def lorenz_delays(rng: Generator) -> Drawn:
    """Two variables of Lorenz's system at three moments, all three a little later.

    The first and the last: on the axis where the first two vanish they say nothing of the third.
    """

    def velocity(s: Array) -> Array:
        x, y, z = s.T
        return np.column_stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    start = rng.uniform([-15, -20, 8], [15, 20, 40], (2000, 3))
    runs = flow(velocity, start, np.array([0.0, 0.015, 0.03, 0.05, 0.08, 0.1]), step=0.001)
    return np.hstack([r[:, [0, 2]] for r in runs[:3]]), np.hstack([*runs[3:]]), None


@task(
    "rossler-delays",
    rank=3,
    dimension=3,
    why="States fill a box of R³ around the band, and what follows tells all three.",
)
def rossler_delays(rng: Generator) -> Drawn:
    """Two curved sensors on Rössler's system at three moments, its variables at three later ones."""

    def velocity(s: Array) -> Array:
        x, y, z = s.T
        return np.column_stack([-y - z, x + 0.2 * y, 0.2 + z * (x - 5.7)])

    start = rng.uniform([-7, -8, 0], [7, 5, 8], (2000, 3))
    runs = flow(velocity, start, np.array([0.0, 0.08, 0.16, 0.2, 0.3, 0.5]), step=0.005)
    sensor = [np.column_stack([s[:, 0] + 0.01 * s[:, 0] ** 2, s[:, 1] - 0.3 * s[:, 2]]) for s in runs]
    return np.hstack(sensor[:3]), np.hstack([*runs[3:]]), None


@task(
    "predator-prey",
    rank=2,
    dimension=2,
    noise=0.03,
    why="Two populations around their balance, cycles of all sizes: a disc.",
)
def predator_prey(rng: Generator) -> Drawn:
    """Log counts of prey at five moments, and of prey and predators at four later ones."""

    def velocity(s: Array) -> Array:
        return np.column_stack([1 - np.exp(s[:, 1]), np.exp(s[:, 0]) - 1])

    runs = flow(velocity, 1.1 * ball(rng, 150, 2), 0.5 * np.arange(24))
    X, _, groups = windows(runs[:, :, :1], 10, 5, [0])
    _, Y, _ = windows(runs, 10, 5, [1, 3, 5, 7])
    return X, Y, groups


@task(
    "chemical-clock",
    rank=2,
    dimension=1,
    noise=0.02,
    why="A limit cycle: only the phase differs, but no single number runs around a circle without a jump.",
)
def chemical_clock(rng: Generator) -> Drawn:
    """Concentrations of the Brusselator on its cycle through curved probes, and at later moments."""

    def velocity(s: Array) -> Array:
        x, y = s.T
        return np.column_stack([1 + x**2 * y - 3.5 * x, 2.5 * x - x**2 * y])

    start = flow(velocity, np.array([[1.2, 2.0]]), np.array([80.0]))[0]
    # A little more than a turn, and what follows it.
    axis = np.linspace(0.0, 16.0, 1601)
    many = flow(velocity, start, axis)[:, 0]
    moments = rng.uniform(0, 8, 800)

    def at(t: Array) -> Array:
        values = np.column_stack([np.interp(t, axis, many[:, j]) for j in (0, 1)])
        return np.column_stack([values, np.log(values), values[:, :1] * values[:, 1:]])

    return np.hstack([at(moments), at(moments + 0.6)]), np.hstack([at(moments + d) for d in (2.0, 3.5)]), None


@task(
    "orbits",
    rank=6,
    dimension=6,
    why="Three coordinates and three velocities in a ball of R⁶; later places and velocities tell them.",
)
def orbits(rng: Generator) -> Drawn:
    """Direction and brightness of a planet at four moments, its places and velocities at two later ones."""
    start = np.array([1.0, 0, 0, 0, 1.0, 0]) + 0.3 * ball(rng, 3000, 6)

    def velocity(s: Array) -> Array:
        return np.hstack([s[:, 3:], -s[:, :3] / np.linalg.norm(s[:, :3], axis=1, keepdims=True) ** 3])

    runs = flow(velocity, start, np.array([0.0, 0.1, 0.2, 0.3, 0.5, 2.0]), step=0.02)
    places = runs[:4, :, :3]
    radius = np.linalg.norm(places, axis=2, keepdims=True)
    seen = np.concatenate([places / radius, -5 * np.log10(radius)], axis=2)
    return np.hstack([*seen]), np.hstack([*runs[4:]]), None


@task(
    "ranging",
    rank=3,
    dimension=3,
    noise=0.01,
    why="A place in space, from pictures of two cameras; the other cameras show it again.",
)
def ranging(rng: Generator) -> Drawn:
    """Where two cameras see a point, and where three others do."""
    places = rng.uniform([-1, -1, 3], [1, 1, 6], (1500, 3))

    def view(x: float, y: float, turn: float) -> Array:
        c, s = math.cos(turn), math.sin(turn)
        p = places - np.array([x, y, 0.0])
        u, depth = c * p[:, 0] - s * p[:, 2], s * p[:, 0] + c * p[:, 2]
        return np.column_stack([u / depth, p[:, 1] / depth]) * 500 + 320

    X = np.hstack([view(-1.5, 0, 0.3), view(1.5, 0.2, -0.3)])
    return X, np.hstack([view(0, 2.0, 0.0), view(-3, -1, 0.6), view(3, -2, -0.7)]), None


@task(
    "earthquakes",
    rank=4,
    dimension=4,
    why="Place, depth and moment of the source; arrivals and delays at other stations tell all four.",
)
def earthquakes(rng: Generator) -> Drawn:
    """When both waves arrive at four stations; at five others when the first does, and how much later the second."""
    stations = law("earthquakes").uniform(-60, 60, (9, 2))
    source = rng.uniform([-50, -50, 5, 0], [50, 50, 80, 12], (2000, 4))
    way = np.hypot(np.linalg.norm(source[:, None, :2] - stations, axis=2), source[:, 2:3])
    first, second = (source[:, 3:] + way / speed for speed in (6.0, 3.5))
    return np.hstack([first[:, :4], second[:, :4]]), np.hstack([first[:, 4:], (second - first)[:, 4:]]), None


# Fields and light


@task(
    "shock-waves",
    rank=3,
    dimension=3,
    common=True,
    why="Height, width and place of a bump, which the wave still tells after it has broken.",
)
def shock_waves(rng: Generator) -> Drawn:
    """A velocity field of Burgers' equation, and the field later, by Cole and Hopf."""
    samples, nu, time = 1500, 0.02, 0.5
    height, width, place = rng.uniform([[0.5], [0.08], [-0.4]], [[1.5], [0.2], [0.2]], (3, samples))
    x = np.linspace(-1, 1.2, 64)
    s = np.linspace(-2.5, 2.5, 1001)
    u = height[:, None] * np.exp(-((s - place[:, None]) ** 2) / (2 * width[:, None] ** 2))
    potential = np.cumsum(u, axis=1) * (s[1] - s[0])
    X = height[:, None] * np.exp(-((x - place[:, None]) ** 2) / (2 * width[:, None] ** 2))
    Y = np.empty((samples, len(x)))
    for j, point in enumerate(x):
        exponent = -(((point - s) ** 2) / (2 * time) + potential) / (2 * nu)
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        Y[:, j] = (weight * (point - s)).sum(axis=1) / weight.sum(axis=1) / time
    return X, Y, None


def bands(name: str, count: int, points: int, width: float) -> Array:
    """Absorption (count, points) of substances: a few bands each, over [0, 1]."""
    rng, axis = law(name), np.linspace(0, 1, points)
    centres, heights = rng.random((count, 3, 1)), rng.uniform(0.3, 1.0, (count, 3, 1))
    return (heights * np.exp(-((axis - centres) ** 2) / (2 * width**2))).sum(axis=1)


@task(
    "mixtures",
    rank=4,
    dimension=4,
    common=True,
    noise=0.01,
    why="Six concentrations show in the visible, four of them absorb in the infrared, each in its own way.",
)
def mixtures(rng: Generator) -> Drawn:
    """Visible and infrared spectra of mixtures (Beer and Lambert) by detectors with stray light."""
    amounts = rng.uniform(0.1, 1.0, (1500, 6))
    visible, infrared = bands("visible", 6, 150, 0.06), bands("infrared", 4, 80, 0.07)

    def detector(absorbance: Array) -> Array:
        return -np.log10(10**-absorbance + 0.05)

    return detector(amounts @ visible), detector(amounts[:, :4] @ infrared), None


def lobe(axis: Array, centre: float, left: float, right: float) -> Array:
    """A Gaussian with another width on each side."""
    return np.exp(-((axis - centre) ** 2) / (2 * np.where(axis < centre, left, right) ** 2))


@task(
    "colours",
    rank=3,
    dimension=3,
    noise=0.02,
    why="Spectra of eight parameters act through the three tristimulus values, which the outputs tell.",
)
def colours(rng: Generator) -> Drawn:
    """Reflectance of surfaces, and their appearance: lightness, opponent colours, display values, densities."""
    axis = np.linspace(400, 700, 61)
    centres, widths = np.linspace(400, 700, 8), 45.0
    basis = np.exp(-((axis - centres[:, None]) ** 2) / (2 * widths**2))
    R = 0.05 + 0.9 / (1 + np.exp(-(rng.normal(0, 1.6, (1500, 8)) @ basis - 0.3)))
    # The matching functions of 1931 as sums of lobes (Wyman, Sloan and Shirley 2013).
    x = 1.056 * lobe(axis, 599.8, 37.9, 31.0) + 0.362 * lobe(axis, 442.0, 16.0, 26.7)
    x = x - 0.065 * lobe(axis, 501.1, 20.4, 26.2)
    y = 0.821 * lobe(axis, 568.8, 46.9, 40.5) + 0.286 * lobe(axis, 530.9, 16.3, 31.1)
    z = 1.217 * lobe(axis, 437.0, 11.8, 36.0) + 0.681 * lobe(axis, 459.0, 26.0, 13.8)
    match = np.column_stack([x, y, z])
    XYZ = R @ match / match.sum(axis=0)
    f = np.cbrt(XYZ)
    lab = np.column_stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])])
    display = np.array([[2.8, -1.3, -0.5], [-1.0, 1.9, 0.04], [0.05, -0.2, 1.15]])
    rgb = np.arctan(3 * (XYZ @ display.T - 0.5))
    return R, np.hstack([lab, rgb, -np.log10(XYZ)]), None


@task(
    "thin-films",
    rank=3,
    dimension=3,
    common=True,
    why="Thickness and index of a film and the thickness of the oxide below it; oblique light tells them again.",
)
def thin_films(rng: Generator) -> Drawn:
    """Reflectance of two films on silicon at normal incidence, and at 55° in both polarisations."""
    samples = 2000
    index, first, second = rng.uniform([[1.7], [60.0], [20.0]], [[2.2], [120.0], [80.0]], (3, samples))
    waves = np.linspace(400, 900, 60)

    def reflectance(angle: float, polarised: str) -> Array:
        sine = math.sin(angle)
        ns = [np.ones(samples) + 0j, index + 0j, np.full(samples, 1.46 + 0j), np.full(samples, 3.9 - 0.05j)]
        cosines = [np.sqrt(1 - (sine / n) ** 2) for n in ns]
        waist = [n * c if polarised == "s" else n / c for n, c in zip(ns, cosines)]
        B, C = np.ones((samples, len(waves)), complex), waist[3][:, None] * np.ones(len(waves))
        for j, thick in ((2, second), (1, first)):
            delta = 2 * np.pi * (ns[j] * cosines[j] * thick)[:, None] / waves
            cos, sin, eta = np.cos(delta), np.sin(delta), waist[j][:, None]
            B, C = cos * B + 1j * sin / eta * C, 1j * eta * sin * B + cos * C
        r = (waist[0][:, None] * B - C) / (waist[0][:, None] * B + C)
        return np.abs(r) ** 2

    return reflectance(0.0, "s"), np.hstack([reflectance(0.96, "s"), reflectance(0.96, "p")]), None


@task(
    "sun-on-panels",
    rank=2,
    dimension=2,
    noise=0.02,
    why="Three numbers (day, hour, latitude) act through the place of the sun, a part of the half sphere: a disc.",
)
def sun_on_panels(rng: Generator) -> Drawn:
    """Season, hour and latitude by day, and the powers of ten panels under a clear sky."""
    samples = 8000
    season, hour = rng.uniform(0, 2 * np.pi, samples), rng.uniform(-np.pi, np.pi, samples)
    latitude = np.radians(rng.uniform(25, 60, samples))
    declination = np.radians(23.44) * np.sin(season)
    east = -np.cos(declination) * np.sin(hour)
    north = np.cos(latitude) * np.sin(declination) - np.sin(latitude) * np.cos(declination) * np.cos(hour)
    up = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(hour)
    day = np.flatnonzero(up > 0.15)[:2000]
    sun = np.column_stack([east, north, up])[day]
    panels = law("panels").standard_normal((10, 3)) + np.array([0, -0.5, 1.0])
    panels /= np.linalg.norm(panels, axis=1, keepdims=True)
    beam = np.exp(-0.25 / sun[:, 2:])
    power = np.maximum(0, sun @ panels.T) * beam + 0.15 * sun[:, 2:] * (1 + panels[:, 2])
    X = np.column_stack([np.cos(season), np.sin(season), np.cos(hour), np.sin(hour), latitude])[day]
    return X, power, None


@task(
    "satellite",
    rank=3,
    dimension=2,
    noise=0.01,
    why="The direction of the sun on the whole sphere, which no two numbers describe without a jump.",
)
def satellite(rng: Generator) -> Drawn:
    """Six coarse sun sensors of a tumbling satellite, and the temperatures of eight faces."""
    sun = rng.standard_normal((1200, 3))
    sun /= np.linalg.norm(sun, axis=1, keepdims=True)
    axes = np.vstack([np.eye(3), -np.eye(3)])
    faces = law("satellite").standard_normal((8, 3))
    faces /= np.linalg.norm(faces, axis=1, keepdims=True)
    X = np.logaddexp(0, 4 * sun @ axes.T)
    return X, (1 + np.logaddexp(0, 3 * sun @ faces.T)) ** 0.25, None


# Parameters of models


@task(
    "epidemics",
    rank=3,
    dimension=3,
    noise=0.02,
    why="Eight inputs act through infection rate, recovery rate and first share of infected; curves tell the three.",
)
def epidemics(rng: Generator) -> Drawn:
    """Contacts, infectiousness, days ill, …, and the share of infected people on 30 days."""
    samples = 1500
    contacts, chance, days = rng.uniform([[6], [0.03], [4]], [[14], [0.07], [10]], (3, samples))
    people, first = 10 ** rng.uniform([[4], [1.0]], [[6], [2.5]], (2, samples))
    others = rng.standard_normal((samples, 3))
    beta, gamma, i = contacts * chance, 1 / days, first / people
    state = np.column_stack([1 - i, i])

    def velocity(s: Array) -> Array:
        new = beta * s[:, 0] * s[:, 1]
        return np.column_stack([-new, new - gamma * s[:, 1]])

    curves = flow(velocity, state, np.linspace(2, 60, 30), step=0.25)[:, :, 1].T
    X = np.column_stack([contacts, chance, days, np.log10(people), np.log10(first), others])
    return X, np.log10(curves + 1e-4), None


@task(
    "drug-kinetics",
    rank=3,
    dimension=3,
    noise=0.05,
    why="Seven inputs act through dose over volume, uptake and elimination; the curve of concentrations tells them.",
)
def drug_kinetics(rng: Generator) -> Drawn:
    """Dose, weight, kidney function, …, and concentrations in blood at 12 hours."""
    samples = 1500
    dose, weight, kidney = rng.uniform([[50], [45], [0.3]], [[200], [110], [1.3]], (3, samples))
    share, food, albumin, age = rng.uniform([[0.5], [0], [0.6], [20]], [[1], [1], [1.4], [80]], (4, samples))
    volume = 40 * (weight / 70) * albumin
    clearance = 9 * (weight / 70) ** 0.75 * (0.3 + 0.7 * kidney)
    ka, k = 2.4 * np.exp(-1.2 * food), clearance / volume
    hours = np.array([0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 18])
    gone = np.exp(-k[:, None] * hours) - np.exp(-ka[:, None] * hours)
    curves = (share * dose / volume * ka / (ka - k))[:, None] * gone
    return np.column_stack([dose, weight, kidney, share, food, albumin, age]), np.log(curves + 0.02), None


@task(
    "reaction",
    rank=3,
    dimension=3,
    why="Temperature, two catalysts, pressure and feed act through two rates and the first concentration.",
)
def reaction(rng: Generator) -> Drawn:
    """A → B → C in a batch reactor: settings, and concentrations of all at eight moments."""
    samples = 1200
    kelvin, one, two, feed, stir = rng.uniform(
        [[320], [0.5], [0.5], [0.5], [0]], [[360], [2.0], [2.0], [1.5], [1]], (5, samples)
    )
    heat = 1000 * (1 / 340 - 1 / kelvin)
    k1, k2 = (one * np.exp(4.0 * heat))[:, None], (0.4 * two * np.exp(9.0 * heat))[:, None]
    k2 = np.where(np.abs(k1 - k2) < 1e-4, k1 + 1e-4, k2)
    t = np.linspace(0.3, 4, 8)
    A = feed[:, None] * np.exp(-k1 * t)
    B = feed[:, None] * k1 / (k2 - k1) * (np.exp(-k1 * t) - np.exp(-k2 * t))
    X = np.column_stack([kelvin - 273.15, one, two, feed, stir])
    return X, np.hstack([A, B, feed[:, None] - A - B]), None


@task(
    "gas-states",
    rank=2,
    dimension=2,
    why="Temperature and volume fix the state of a gas: all its properties are functions of the two.",
)
def gas_states(rng: Generator) -> Drawn:
    """Five properties of a van der Waals gas above its critical point, and nine others."""
    T, v = rng.uniform([[1.1], [0.7]], [[2.0], [4.0]], (2, 1000))
    p = 8 * T / (3 * v - 1) - 3 / v**2
    cv = 1.5 + 0.8 / (1 + np.exp(-6 * (T - 1.5)))
    heat = 1.5 * T + 0.8 / 6 * np.log1p(np.exp(6 * (T - 1.5)))
    u = 8 / 3 * heat - 3 / v
    s = 8 / 3 * (1.9 * np.log(T) + np.log(3 * v - 1))
    slope_T, slope_v = 8 / (3 * v - 1), 6 / v**3 - 24 * T / (3 * v - 1) ** 2
    cp = 8 / 3 * cv - T * slope_T**2 / slope_v
    sound = np.sqrt(np.maximum(-(v**2) * slope_v * cp / (8 / 3 * cv), 1e-9))
    X = np.column_stack([p, 1 / v, sound, T, p * v / T])
    Y = [u, u + p * v, s, u - T * s, np.log(cp), slope_T / -slope_v / v, -1 / (v * slope_v), p * v - 3 / v, cp * T]
    return X, np.column_stack(Y), None


@task(
    "pipe-flow",
    rank=3,
    dimension=3,
    noise=0.01,
    why="Nine inputs in their units act through Reynolds and Prandtl number and relative roughness.",
)
def pipe_flow(rng: Generator) -> Drawn:
    """Fluid, pipe and speed in SI units, over decades; friction, velocity profile and heat transfer."""
    samples = 2000
    low = np.array([[2.7], [-3.3], [-2.0], [-0.3], [-5.0], [3.0], [-1.2], [0.0], [4.0]])
    high = np.array([[3.2], [-2.5], [-0.7], [0.8], [-3.7], [3.7], [0.0], [2.0], [6.0]])
    rho, mu, wide, speed, rough, cp, lead, long, pressure = 10 ** rng.uniform(low, high, (9, samples))
    re, pr, eps = rho * speed * wide / mu, mu * cp / lead, rough / wide
    friction = 1 / (-1.8 * np.log10((eps / 3.7) ** 1.11 + 6.9 / (re + 10))) ** 2
    root = np.sqrt(friction / 8)
    nusselt = root**2 * re * pr / (1.07 + 12.7 * root * (pr ** (2 / 3) - 1))
    radius = np.array([0.2, 0.5, 0.8, 0.95])
    profile = (1 - radius) ** (np.sqrt(friction)[:, None]) * (1 + np.sqrt(friction)[:, None])
    layer = np.log10(5 / (root * re) + 0.3 * eps)
    Y = [np.log10(friction), np.log10(nusselt), np.log10(nusselt / re), layer, np.log10(re * root)]
    X = np.column_stack([rho, mu, wide, speed, rough, cp, lead, long, pressure])
    return X, np.column_stack([*Y, profile]), None


@task(
    "dose-response",
    rank=2,
    dimension=2,
    noise=0.03,
    why="Two doses, a blocker and two affinities act through two effective concentrations.",
)
def dose_response(rng: Generator) -> Drawn:
    """Logarithms of doses and affinities, and the responses of eight tissues to both drugs."""
    samples = 1000
    a, b, blocker, ka, kb = rng.uniform([[-1], [-1], [-1], [-0.5], [-0.5]], [[1], [1], [1], [0.5], [0.5]], (5, samples))
    one = 10 ** (a - ka) / (1 + 10**blocker)
    two = 10 ** (b - kb)
    weights = law("tissues").uniform(0.2, 2.0, (4, 8))
    x, y = (one[:, None] * weights[0]) ** (0.7 + 0.4 * weights[2]), (two[:, None] * weights[1]) ** 1.2
    response = (x + 0.6 * y + weights[3] * x * y) / (1 + x + y + weights[3] * x * y)
    return np.column_stack([a, b, blocker, ka, kb]), response, None


@task(
    "robot-arm",
    rank=3,
    dimension=3,
    noise=0.02,
    why="Three of six joints move elbow and wrist, within limits: a box of three angles, which the places tell.",
)
def robot_arm(rng: Generator) -> Drawn:
    """Six joint angles, and elbow and wrist in space with distances to three posts."""
    q = rng.uniform([-1.5, 0.2, -2.2, -2, -2, -2], [1.5, 1.3, -0.3, 2, 2, 2], (1500, 6))
    turn = np.column_stack([np.cos(q[:, 0]), np.sin(q[:, 0])])

    def point(reach: Array, height: Array) -> Array:
        return np.column_stack([turn * reach[:, None], height])

    elbow = point(np.cos(q[:, 1]), np.sin(q[:, 1]))
    wrist = elbow + point(0.8 * np.cos(q[:, 1] + q[:, 2]), 0.8 * np.sin(q[:, 1] + q[:, 2]))
    posts = law("posts").uniform(-2, 2, (3, 3)) + np.array([0, 0, 3.0])
    distances = np.linalg.norm(wrist[:, None] - posts, axis=2)
    return q, np.hstack([elbow, wrist, distances]), None


@task(
    "turning-joints",
    rank=3,
    dimension=2,
    why="Two angles that turn all the way round: a torus, which lies in space but not in the plane.",
)
def turning_joints(rng: Generator) -> Drawn:
    """Resolvers of two joints without stops, and places of elbow and hand."""
    a, b = rng.uniform(0, 2 * np.pi, (2, 2000))
    X = np.column_stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b)])
    hand = [np.cos(a) + 0.8 * np.cos(a + b), np.sin(a) + 0.8 * np.sin(a + b)]
    marks = [np.hypot(hand[0] - x, hand[1] - y) for x, y in ((2.5, 1), (-2, 2), (0, -3))]
    return X, np.column_stack([np.cos(a), np.sin(a), *hand, *marks]), None


# Tables as they are


def plant(rng: Generator, samples: int = 1500) -> tuple[Array, Array]:
    """24 sensors of a plant with five states in units of their own, and ten qualities of three of the states."""
    states = rng.uniform(-1, 1, (samples, 5))
    rule = law("plant")
    X = np.tanh(states @ rule.normal(0, 0.6, (5, 24))) + 0.5 * states @ rule.normal(0, 0.6, (5, 24))
    units, offsets = 10.0 ** rule.uniform(-7, 7, 24), rule.choice([0.0, 0.0, 60.0], 24)
    Y = np.sin(states[:, :3] @ rule.normal(0, 1.2, (3, 10)) + rule.uniform(0, 3, 10))
    return units * (X + offsets), Y


@task(
    "plant-sensors",
    rank=3,
    dimension=3,
    noise=0.03,
    why="Sensors show five states, of which three act on the qualities, each in its own way.",
)
def plant_sensors(rng: Generator) -> Drawn:
    """Sensors in units over fourteen decades, some with large offsets."""
    return *plant(rng), None


@task(
    "plant-sentinels",
    rank=3,
    dimension=3,
    noise=0.03,
    options={"missing": "median"},
    why="As the plant's: what one sensor did not record the other 23 tell.",
)
def plant_sentinels(rng: Generator) -> Drawn:
    """The plant's sensors with −9999 in 1 % of one column."""
    X, Y = plant(rng)
    X[:, 3] *= 1 / np.abs(X[:, 3]).max()
    X[rng.random(len(X)) < 0.01, 3] = -9999.0
    return X, Y, None


@task(
    "plant-glitches",
    rank=3,
    dimension=3,
    noise=0.01,
    why="As the plant's: where one sensor shows nonsense the other 23 tell.",
)
def plant_glitches(rng: Generator) -> Drawn:
    """The plant's sensors with nonsense, hundreds of times too large, in three rows of a thousand of six columns."""
    X, Y = plant(rng, 2000)
    hit = rng.random((len(X), 6)) < 0.003
    X[:, :6] = np.where(hit, X[:, :6] * rng.uniform(100, 1000, hit.shape) * rng.choice([-1, 1], hit.shape), X[:, :6])
    return X, Y, None


@task(
    "genes",
    rank=3,
    dimension=3,
    noise=0.02,
    relevant=slice(0, 6),
    why="Six of 2,000 expression levels act through three pathways; the other columns are correlated among themselves.",
)
def genes(rng: Generator) -> Drawn:
    """1,500 samples of 2,000 expression levels, and twelve traits."""
    samples, rule = 1500, law("genes")
    factors = rng.standard_normal((samples, 20))
    others = 0.6 * factors @ rule.standard_normal((20, 1994)) / math.sqrt(20) * 3
    others += rng.standard_normal(others.shape)
    six = rng.standard_normal((samples, 6))
    pathways = np.tanh(
        np.column_stack([six[:, 0] + six[:, 1], six[:, 2] - 0.7 * six[:, 3], six[:, 4] + 0.5 * six[:, 5]])
    )
    Y = pathways @ rule.standard_normal((3, 12)) + 0.6 * np.sin(2 * pathways @ rule.standard_normal((3, 12)))
    return np.hstack([six, others]), Y, None


@task("noise", rank=0, dimension=0, why="X and Y are independent: the best prediction is a constant.")
def noise(rng: Generator) -> Drawn:
    """Independent noise with heavy tails and correlated columns."""
    mix = law("noise").standard_normal((12, 12))
    return rng.standard_t(4, (1000, 12)) @ mix, rng.standard_normal((1000, 8)) @ mix[:8, :8], None


@task(
    "wrong-pendulum",
    rank=0,
    dimension=0,
    common=True,
    why="The later frames are of another pendulum, which swings by itself: the best prediction is a constant.",
)
def wrong_pendulum(rng: Generator) -> Drawn:
    """Frames of one pendulum, and of another one."""
    X, _, groups = pendulum_frames(rng)
    _, Y, _ = pendulum_frames(rng)
    return X, Y, groups
