"""What is known of data before it is loaded."""

from graphveil.methods import Facts
from graphveil.runs import Source


def test_what_the_catalog_expects_is_what_is_loaded():
    for split in ("transductive", "inductive"):
        source = Source(data="social", split=split)
        assert source.expected() == Facts.of(source.arrange(source.load()).training)
    assert Source(data="facebook100:A").expected() is None
    assert Source(data="./social").expected() is None
