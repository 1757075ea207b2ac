"""What is in a page of HTML, and what a browser would load or run of it."""

from html.parser import HTMLParser

ASKING = {"src", "href", "srcset", "data", "action", "background", "poster"}


class Page(HTMLParser):
    """Elements, attributes that load or run something, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.asked: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [] if tag in ("meta", "img", "link", "br", "hr", "input") else [tag]
        self.asked += [value or "" for name, value in attrs if name in ASKING]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def check_self_contained(text: str) -> Page:
    """Return a page, every element of which is closed, that loads and runs nothing."""
    page = Page(text)
    assert page.open == [] and page.handlers == [] and "script" not in page.tags
    assert all(address.startswith(("#", "data:")) for address in page.asked), page.asked
    assert "default-src 'none'" in text
    assert "@import" not in text and "url(" not in text
    return page
