"""Grids of plans that take no time."""

from dataclasses import replace


def trimmed(axes, names, most=2):
    """Sliders of some names with few values, among them the one asked for: plans take a while."""
    short = []
    for axis in axes:
        first = max(0, axis.asked + 1 - most)
        values = axis.values[first : first + most]
        if axis.name in names:
            short.append(replace(axis, values=values, asked=axis.asked - first))
    return short
