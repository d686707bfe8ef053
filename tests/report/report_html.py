"""HTML as a tree of plain elements: enough to ask a page what it says."""

import base64
import hashlib
from html.parser import HTMLParser

VOID = ("meta", "input", "br", "img", "link", "hr")


class Element:
    """A tag, its attributes and what is inside: elements and strings."""

    def __init__(self, tag, attributes=()):
        self.tag, self.attributes, self.inside = tag, dict(attributes), []

    @property
    def text(self):
        """All text inside, with single spaces."""
        parts = [part if isinstance(part, str) else part.text for part in self.inside]
        return " ".join("".join(parts).split())

    @property
    def every(self):
        """All elements below this one."""
        for part in self.inside:
            if isinstance(part, Element):
                yield part
                yield from part.every

    def all(self, tag=None, **wanted):
        """Elements by tag and attributes; ``class_`` is one of the classes."""
        kind = wanted.pop("class_", None)
        return [
            element
            for element in self.every
            if (tag is None or element.tag == tag)
            and (kind is None or kind in element.attributes.get("class", "").split())
            and all(element.attributes.get(key) == value for key, value in wanted.items())
        ]

    def one(self, tag=None, **wanted):
        """The only such element."""
        elements = self.all(tag, **wanted)
        assert len(elements) == 1, (tag, wanted, len(elements))
        return elements[0]

    def table(self):
        """The rows of a table's body, as texts."""
        body = self.one("tbody")
        return [
            [cell.text for cell in row.inside if isinstance(cell, Element)]
            for row in body.all("tr")
        ]

    def pairs(self):
        """The terms of a list and what is said of them."""
        return {row.one("dt").text: row.one("dd").text for row in self.all("div") if row.all("dt")}


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = Element("root")
        self.open = [self.root]

    def handle_starttag(self, tag, attributes):
        element = Element(tag, attributes)
        self.open[-1].inside.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].inside.append(Element(tag, attributes))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> is closed by </{tag}>"
        self.open.pop()

    def handle_data(self, text):
        self.open[-1].inside.append(text)


def parse(text):
    """The tree of a page; tags that do not match are an error."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert [element.tag for element in reader.open] == ["root"]
    return reader.root


def assert_only_our_own(text):
    """One script and one style, both ours; no handler, no address, no style attribute."""
    tree = parse(text)
    policy = tree.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    scripts = [script for script in tree.all("script") if script.attributes.get("type") is None]
    for name, elements in (("script", scripts), ("style", tree.all("style"))):
        assert len(elements) == 1
        (inside,) = elements[0].inside
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for element in tree.every:
        assert element.tag not in ("img", "iframe", "link", "object", "embed", "base"), element.tag
        for name, value in element.attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("src", "srcset", "style", "action", "xlink:href"), name
            assert name != "href" or value.startswith("#"), value
    return tree
