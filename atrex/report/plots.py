"""Plots of the HTML report as inline SVG: the roofline of the cases, and the course of the search."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from atrex.records import Bound, Ratio
from atrex.report import DropoutEpisode, Step
from atrex.report.text import eager_us, factor, micros, plain, ratio, spread
from atrex.score import CaseScore

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 44
BYTES = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class LogScale:
    """A logarithmic axis from `low` to `high` laid over pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value above 0."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def roofline(cases: Iterable[CaseScore]) -> str:
    """Bytes moved against device time in µs, both logarithmic; "" if no case has both a cost and a result.

    Lines: the vendor's speed of light and the attainable bound through the memory-limited cases; a case
    that is limited otherwise has its own tick. Dots: the kernel, p10 to p90; rings: eager PyTorch.
    """
    shown = [(one, one.cost.bytes, one.result.bound) for one in cases if one.cost and one.result]
    shown = sorted((each for each in shown if each[1] > 0 and each[2].sol_us > 0), key=lambda each: each[1])
    if not shown:
        return ""
    x, y = _axes([size for _, size, _ in shown], [t for one, _, bound in shown for t in _times(one, bound)])
    parts = [_grid_x(x), _grid_y(y), *_bounds([(size, bound) for _, size, bound in shown], x, y)]
    parts += [_measured(one, x(size), y) for one, size, _ in shown]
    return _svg(
        "Roofline: device time of every case against the bytes it must move", parts, "bytes moved", "µs"
    )


def history(steps: Sequence[Step], episodes: Iterable[DropoutEpisode]) -> str:
    """Speed-up over the incumbent by step, with intervals; crosses at the foot were never measured."""
    if not steps:
        return ""
    gains = [step.realised for step in steps if step.realised and step.realised.low > 0]
    seen = [1.0, *(edge for gain in gains for edge in (gain.low, gain.high))]
    seen += [step.predicted for step in steps if step.predicted and step.predicted > 0]
    margin = max(1.02, (max(seen) / min(seen)) ** 0.08)
    y = LogScale(min(seen) / margin, max(seen) * margin, HEIGHT - BOTTOM - 22, TOP)
    first, last = steps[0].step, max(steps[-1].step, steps[0].step + 1)
    pitch = (WIDTH - LEFT - RIGHT - 24) / (last - first)

    def x(step: float) -> float:
        return LEFT + 12 + (step - first) * pitch

    bands = [_band(x(episode.first - 0.5), x(episode.last + 0.5), episode) for episode in episodes]
    parts = [*bands, _steps_axis(x, first, last), *_gain_axis(y)]
    parts += [_step(step, x(step.step) + shift * min(pitch, 40), y) for step, shift in _spread_out(steps)]
    return _svg(
        "Search: speed-up over the incumbent at every step", parts, "step", "speed-up over the incumbent"
    )


def _times(one: CaseScore, bound: Bound) -> list[float]:
    times = [bound.sol_us, bound.attainable_us, eager_us(one)]
    if one.result and one.result.latency:
        times += [one.result.latency.p10_us, one.result.latency.median_us, one.result.latency.p90_us]
    return [time for time in times if time is not None and time > 0]


def _axes(sizes: Sequence[float], times: Sequence[float]) -> tuple[LogScale, LogScale]:
    x = LogScale(min(sizes) / 1.5, max(sizes) * 1.5, LEFT, WIDTH - RIGHT)
    return x, LogScale(min(times) / 1.3, max(times) * 1.3, HEIGHT - BOTTOM, TOP)


def _bounds(bounds: Sequence[tuple[int, Bound]], x: LogScale, y: LogScale) -> list[str]:
    memory = [(size, bound) for size, bound in bounds if bound.limiter == "memory"]
    sol = [(x(size), y(bound.sol_us)) for size, bound in memory]
    attainable = [(x(size), y(bound.attainable_us)) for size, bound in memory if bound.attainable_us]
    lines = [_polyline(sol, "sol"), _polyline(attainable, "attainable")]
    others = [(size, bound) for size, bound in bounds if bound.limiter != "memory"]
    return lines + [_line(x(n) - 6, y(b.sol_us), x(n) + 6, y(b.sol_us), "sol") for n, b in others]


def _measured(one: CaseScore, x: float, y: LogScale) -> str:
    latency = one.result.latency if one.result else None
    if latency is None:
        return _cross(x, HEIGHT - BOTTOM - 8, f"{one.case.id}: {one.standing}")
    parts = []
    if eager := eager_us(one):
        parts.append(_circle(x, y(eager), 4, "eager", f"{one.case.id}: eager {micros(eager)} µs"))
    if latency.p10_us > 0:
        parts.append(_line(x, y(latency.p10_us), x, y(latency.p90_us), "ours"))
    return "".join(parts) + _circle(
        x, y(latency.median_us), 3.2, "ours", f"{one.case.id}: {spread(latency)} µs, S {one.S:.3f}"
    )


def _step(step: Step, x: float, y: LogScale) -> str:
    label = f"step {step.step} {step.bucket} {step.move}: {step.outcome}"
    guess = ""
    if step.predicted and step.predicted > 0:
        guess = _diamond(x, y(step.predicted), f"{label}, predicted {factor(step.predicted)}×")
    gain: Ratio | None = step.realised
    if gain is None or gain.low <= 0:
        return guess + _cross(x, HEIGHT - BOTTOM - 8, label)
    kind = "won" if step.outcome in ("promoted", "nominated", "advanced") else "lost"
    dot = _circle(x, y(gain.median), 3.6, kind, f"{label}, {ratio(gain)}×")
    return guess + _line(x, y(gain.low), x, y(gain.high), kind) + dot


def _spread_out(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Steps with their shift in steps: moves of one step stand side by side."""
    groups: dict[int, list[Step]] = {}
    for step in steps:
        groups.setdefault(step.step, []).append(step)
    return [
        (step, 0.7 * ((place + 0.5) / len(group) - 0.5))
        for group in groups.values()
        for place, step in enumerate(group)
    ]


def _grid_x(scale: LogScale) -> str:
    parts = []
    for power in _decades(scale):
        at = scale(10.0**power)
        unit = min(max(power, 0) // 3, len(BYTES) - 1)
        label = f"{10 ** (power - 3 * unit):g} {BYTES[unit]}"
        parts += [_line(at, TOP, at, HEIGHT - BOTTOM, "grid"), _text(at, HEIGHT - BOTTOM + 16, label)]
    return "".join(parts)


def _grid_y(scale: LogScale) -> str:
    parts = []
    for power in _decades(scale):
        at = scale(10.0**power)
        parts += [
            _line(LEFT, at, WIDTH - RIGHT, at, "grid"),
            _text(LEFT - 7, at + 4, f"{10.0**power:g}", "end"),
        ]
    return "".join(parts)


def _decades(scale: LogScale) -> range:
    return range(math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high)) + 1)


def _gain_axis(scale: LogScale) -> list[str]:
    """Rounded speed-ups, about five of them, and the line of no gain."""
    raw = (scale.high - scale.low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    pitch = next(unit * nice for nice in (1, 2, 5, 10) if unit * nice >= raw)
    parts = []
    for n in range(math.ceil(scale.low / pitch), math.floor(scale.high / pitch) + 1):
        if n > 0:
            at = scale(n * pitch)
            label = f"{n * pitch:.10g}×"
            parts += [_line(LEFT, at, WIDTH - RIGHT, at, "grid"), _text(LEFT - 7, at + 4, label, "end")]
    return [*parts, _line(LEFT, scale(1.0), WIDTH - RIGHT, scale(1.0), "one")]


def _steps_axis(x: Callable[[float], float], first: int, last: int) -> str:
    pitch = max(1, math.ceil((last - first) / 12))
    return "".join(_text(x(step), HEIGHT - BOTTOM + 16, str(step)) for step in range(first, last + 1, pitch))


def _band(start: float, end: float, episode: DropoutEpisode) -> str:
    title = _title(f"dropout, share {episode.share:.2f}: {', '.join(episode.hidden)}: {episode.outcome}")
    start, end = max(start, LEFT), min(end, WIDTH - RIGHT)
    size = f'width="{max(end - start, 1):.1f}" height="{HEIGHT - BOTTOM - TOP}"'
    return f'<rect class="episode" x="{start:.1f}" y="{TOP}" {size}>{title}</rect>'


def _svg(title: str, parts: Iterable[str], x_name: str, y_name: str) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    axes = _line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis") + _line(
        LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"
    )
    turn = f'transform="rotate(-90 14 {middle:.0f})"'
    names = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name)
    names += f'<text x="14" y="{middle:.0f}" text-anchor="middle" {turn}>{y_name}</text>'
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{axes}{names}{body}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _polyline(points: Sequence[tuple[float, float]], kind: str) -> str:
    if len(points) < 2:
        return "".join(_line(x - 6, y, x + 6, y, kind) for x, y in points)
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _circle(x: float, y: float, radius: float, kind: str, title: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{_title(title)}</circle>'


def _diamond(x: float, y: float, title: str) -> str:
    return f'<path class="guess" d="M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4-4z">{_title(title)}</path>'


def _cross(x: float, y: float, title: str) -> str:
    return f'<path class="bad" d="M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6">{_title(title)}</path>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{html.escape(plain(text))}</title>"
