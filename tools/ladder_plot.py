"""A ladder as a picture: on the left its rungs, on the right where they stand under the roofline. SVG, by hand."""

import math
import shutil
import subprocess
from html import escape
from pathlib import Path

MOST_PROBLEMS = 4
COLOURS = ["#8c564b", "#d62728", "#ff7f0e", "#bcbd22", "#2ca02c", "#17a2b8", "#1f77b4", "#9467bd", "#e377c2", "#7f7f7f"]
INK, FAINT, GRID = "#222222", "#777777", "#e4e4e4"
WIDTH, FONT = 1080, 12
SMALL = 11
CHARACTER, SMALL_CHARACTER = 0.56 * FONT, 0.56 * SMALL  # the width of one, on average
LEFT = 24
PLOT_LEFT, PLOT_RIGHT, PLOT_TOP = 600, WIDTH - 24, 64


class Svg:
    def __init__(self):
        self.parts = []

    def line(self, x1, y1, x2, y2, colour=INK, width=1.0, dash=""):
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
                          f'stroke-width="{width}"{dash}/>')

    def rectangle(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                          f'fill="{colour}"/>')

    def dot(self, x, y, colour):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" stroke="white"/>')

    def text(self, x, y, words, anchor="start", colour=INK, size=FONT, bold=False, turn=0.0):
        weight = ' font-weight="bold"' if bold else ""
        turn = f' transform="rotate({turn:.1f} {x:.1f} {y:.1f})"' if turn else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
                          f'font-size="{size}"{weight}{turn}>{escape(words)}</text>')

    def page(self, height):
        body = "\n".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
                f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="Helvetica, Arial, sans-serif">\n'
                f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>\n{body}\n</svg>\n')


def rate_of(value):
    """4.27e12 -> "4.27 T"."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} "


def time_of(seconds):
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            break
    return f"{seconds / scale:.3g} {unit}"


def attainable(machine, intensity):
    """The roof above problems of so many operations per byte, in operations per second."""
    roof = machine.bandwidth * intensity
    return min(roof, machine.matmul_rate) if machine.matmul_rate else roof


def of_roof(rung, machine):
    """The share of what the machine allows this problem: of G where it is bound by arithmetic, else of B."""
    if rung.flops and machine.matmul_rate and rung.intensity * machine.bandwidth > machine.matmul_rate:
        return rung.of_matmul_rate, "G"
    return rung.of_bandwidth, "B"


def spread(wanted, gap, low, high):
    """Positions as near as they can be to the wanted ones, in the same order, no two nearer than the gap."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = []
    for i in order:
        placed.append(max(wanted[i], placed[-1] + gap if placed else low))
    # What went past the end moves back, and pushes what is before it.
    limit = high
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    result = [0.0] * len(wanted)
    for position, i in zip(placed, order):
        result[i] = position
    return result


def lines_of(words, width):
    """The words in lines of at most this width."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * SMALL_CHARACTER > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def draw_ladder(svg, machine, ladders, colours, top):
    """The rungs, the first at the bottom: the longer the bar, the nearer to the ceiling. Returns where it ends."""
    bar_left, bar_right, text_right = LEFT + 132, 430, 548
    y = top
    for problem, ladder in ladders.items():
        svg.text(LEFT, y + 12, problem, bold=True)
        y += 22
        for rung in reversed([rung for rung in ladder if rung.seconds]):
            share, ceiling = of_roof(rung, machine)
            svg.text(bar_left - 8, y + 14, rung.variant, anchor="end")
            length = max((bar_right - bar_left) * min(share, 1.0), 1)
            svg.rectangle(bar_left, y + 3, length, 14, colours[rung.variant])
            svg.line(bar_right, y, bar_right, y + 18, FAINT, 1, "3 3")
            svg.text(bar_right + 8, y + 14, f"{time_of(rung.seconds)}, {share:.2f} {ceiling}", size=SMALL)
            y += 29
            for line in lines_of(rung.idea, text_right - bar_left):
                svg.text(bar_left, y, line, colour=FAINT, size=SMALL)
                y += 13
            y -= 6
        y += 10
    svg.text(bar_left, y + 4, "Dashed: the ceiling that bounds the problem, as measured.", colour=FAINT, size=SMALL)
    return y


class Axes:
    """Two logarithmic axes."""

    def __init__(self, x_range, y_range, bottom):
        self.x_low, self.x_high = (math.log10(value) for value in x_range)
        self.y_low, self.y_high = (math.log10(value) for value in y_range)
        self.bottom = bottom

    def x(self, value):
        return PLOT_LEFT + (math.log10(value) - self.x_low) / (self.x_high - self.x_low) * (PLOT_RIGHT - PLOT_LEFT)

    def value_at(self, x):
        return 10 ** (self.x_low + (x - PLOT_LEFT) / (PLOT_RIGHT - PLOT_LEFT) * (self.x_high - self.x_low))

    def y(self, value):
        return self.bottom - (math.log10(value) - self.y_low) / (self.y_high - self.y_low) * (self.bottom - PLOT_TOP)

    def draw(self, svg):
        for power in range(math.ceil(self.x_low), math.floor(self.x_high) + 1):
            x = self.x(10.0**power)
            svg.line(x, PLOT_TOP, x, self.bottom, GRID)
            svg.text(x, self.bottom + 17, f"{10.0**power:g}", anchor="middle", size=SMALL)
        for power in range(math.ceil(self.y_low), math.floor(self.y_high) + 1):
            y = self.y(10.0**power)
            svg.line(PLOT_LEFT, y, PLOT_RIGHT, y, GRID)
            svg.text(PLOT_LEFT - 6, y + 4, rate_of(10.0**power), anchor="end", size=SMALL)
        svg.line(PLOT_LEFT, self.bottom, PLOT_RIGHT, self.bottom)
        svg.line(PLOT_LEFT, PLOT_TOP, PLOT_LEFT, self.bottom)
        svg.text((PLOT_LEFT + PLOT_RIGHT) / 2, self.bottom + 36, "operations per byte", anchor="middle")
        svg.text(PLOT_LEFT - 46, PLOT_TOP - 14, "operations per second")


def draw_roof(svg, axes, machine, x_range, names_at):
    """Both ceilings. Their names stand where no point can: above the roof."""
    ridge = machine.matmul_rate / machine.bandwidth if machine.matmul_rate else x_range[1]
    low, high = x_range[0], min(ridge, x_range[1])
    x1, y1, x2, y2 = axes.x(low), axes.y(machine.bandwidth * low), axes.x(high), axes.y(machine.bandwidth * high)
    svg.line(x1, y1, x2, y2, INK, 2)
    turn = math.degrees(math.atan2(y2 - y1, x2 - x1))
    at = names_at if low < names_at < high else math.sqrt(low * high)
    svg.text(axes.x(at), axes.y(machine.bandwidth * at) - 8, f"B: {rate_of(machine.bandwidth)}B/s", anchor="middle",
             size=SMALL, turn=turn)
    if machine.matmul_rate and ridge < x_range[1]:
        svg.line(axes.x(ridge), axes.y(machine.matmul_rate), PLOT_RIGHT, axes.y(machine.matmul_rate), INK, 2)
        svg.text(PLOT_RIGHT, axes.y(machine.matmul_rate) - 8, f"G: {rate_of(machine.matmul_rate)}FLOP/s", anchor="end",
                 size=SMALL)


def distinct(ladders):
    """Of problems at the same place under the roof, the largest."""
    def size(ladder):
        return ladder[0].bytes_per_second * ladder[0].seconds

    kept = []
    measured = [[rung for rung in ladder if rung.seconds and rung.intensity] for ladder in ladders.values()]
    for ladder in sorted(filter(None, measured), key=size, reverse=True):
        if all(abs(math.log(ladder[0].intensity / other[0].intensity)) > 0.2 for other in kept):
            kept.append(ladder)
    return kept


def draw_roofline(svg, machine, ladders, colours, bottom):
    """A point per rung and problem; the points of one rung are joined, and named once, right of the last problem."""
    points = {}
    for ladder in distinct(ladders):
        for rung in ladder:
            points.setdefault(rung.variant, []).append((rung.intensity, rung.arithmetic))
    if not points or not machine.bandwidth:
        svg.text(PLOT_LEFT, PLOT_TOP + 40, "No arithmetic to speak of: the roofline has no place for it.", colour=FAINT)
        return
    xs = [x for series in points.values() for x, _ in series]
    ys = [y for series in points.values() for _, y in series]
    ridge = machine.matmul_rate / machine.bandwidth if machine.matmul_rate else max(xs)
    # Room for names right of the last point, and for the roof left of the first.
    longest = max(len(name) for name in points) * CHARACTER + 40
    x_low, x_high = min(xs) / 4, max(ridge * 6, max(xs) * 2)
    while math.log10(x_high / max(xs)) / math.log10(x_high / x_low) * (PLOT_RIGHT - PLOT_LEFT) < longest:
        x_high *= 1.3
    roof = machine.matmul_rate or attainable(machine, x_high)
    axes = Axes((x_low, x_high), (min(*ys, attainable(machine, x_low)) / 3, roof * 3), bottom)
    axes.draw(svg)
    draw_roof(svg, axes, machine, (x_low, x_high), math.sqrt(max(xs) * ridge) if max(xs) < ridge else 0)
    for name, series in points.items():
        series.sort()
        for (x1, y1), (x2, y2) in zip(series, series[1:]):
            svg.line(axes.x(x1), axes.y(y1), axes.x(x2), axes.y(y2), colours[name], 1.5)
    for name, series in points.items():
        for x, y in series:
            svg.dot(axes.x(x), axes.y(y), colours[name])
    label_x = axes.x(max(xs)) + 26
    below_roof = axes.y(attainable(machine, axes.value_at(label_x))) + 11
    ends = [(name, *series[-1]) for name, series in points.items()]
    heights = spread([axes.y(y) for _, _, y in ends], FONT + 2, max(PLOT_TOP + 8, below_roof), bottom - 6)
    for (name, x, y), height in zip(ends, heights):
        svg.line(axes.x(x) + 5, axes.y(y), label_x - 4, height, FAINT, 0.8)
        words_width = len(name) * CHARACTER
        svg.rectangle(label_x - 2, height - 7, words_width + 4, 14, "white")
        svg.text(label_x, height + 4, name, colour=colours[name])


def ladder_svg(op, machine, ladders):
    """`ladders`: the rungs of up to MOST_PROBLEMS problems, the slowest idea of each first."""
    variants = list(dict.fromkeys(rung.variant for ladder in ladders.values() for rung in ladder))
    colours = {variant: COLOURS[i % len(COLOURS)] for i, variant in enumerate(variants)}
    svg = Svg()
    svg.text(LEFT, 28, op, size=17, bold=True)
    svg.text(LEFT + len(op) * 10.5 + 14, 28, machine.name, colour=FAINT)
    end = draw_ladder(svg, machine, ladders, colours, 44)
    bottom = min(max(end - 40, 400), 560)
    draw_roofline(svg, machine, ladders, colours, bottom)
    return svg.page(max(bottom + 52, end + 16))


def no_picture(file):
    """Why write_picture cannot write this file; "" where it can."""
    path = Path(file)
    if path.suffix not in (".svg", ".png"):
        return "expected a name that ends in .svg or .png"
    if path.suffix == ".png" and not shutil.which("rsvg-convert"):
        return "PNG needs rsvg-convert (Debian and Ubuntu: librsvg2-bin); .svg needs nothing"
    is_new = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        return error.strerror
    if is_new:
        path.unlink()  # there may be nothing to draw
    return ""


def write_picture(file, svg):
    if Path(file).suffix == ".svg":
        Path(file).write_text(svg)
    else:
        subprocess.run(["rsvg-convert", "--zoom=2", "-o", file], input=svg.encode(), check=True)
