"""Graphs: caps on messages, what they bound, splits and checks."""
