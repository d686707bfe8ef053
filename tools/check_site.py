"""Check the built site: links and anchors lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches without being asked to.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
HARMLESS = (
    "canonical",
    "next",
    "prev",
    "edit",
    "alternate",
)  # relations of a link that load nothing


class Page(HTMLParser):
    """The links, anchors and loaded addresses of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names, links to and loads."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        address = values.get(LOADED.get(tag, ""), "")
        if address and not (tag == "link" and values.get("rel") in HARMLESS):
            self.loads.append(address)


def problems(folder: Path) -> list[str]:
    """What is wrong with the site in a folder, a line for each."""
    site = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    lines = []
    for path, page in site.items():
        name = path.relative_to(folder.resolve())
        if name.name == "404.html":  # its addresses are those of the server's root
            continue
        lines += [f"{name}: loads {address}" for address in page.loads if urlsplit(address).netloc]
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists():
                lines.append(f"{name}: {link} leads nowhere")
            elif anchor and target in site and anchor not in site[target].anchors:
                lines.append(f"{name}: {link} has no such anchor")
    return sorted(set(lines))


if __name__ == "__main__":
    answer = problems(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
    print("\n".join(answer) or "every link leads somewhere, and nothing is loaded from elsewhere")
    sys.exit(bool(answer))
