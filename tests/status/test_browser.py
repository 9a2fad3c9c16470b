"""The page in a real browser: it loads without a complaint, requests nothing else, and fits a phone."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import pytest

from drabridge.status import page
from drabridge.system.http import close_servers
from tests.support import status_documents
from tests.support.status_documents import _poisoned

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.chromium,
    pytest.mark.skipif(not BROWSER, reason="no chromium here (Debian: apt-get install chromium)"),
]

FLAGS = (
    "--headless",
    "--no-sandbox",  # root in a container has no user namespaces
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=NetworkTimeServiceQuerying",  # the browser asks the time of its maker
    "--enable-logging=stderr",  # what a page says on the console
    "--hide-scrollbars",  # phones lay them over the page
)
PHONE_WIDTH = 390  # CSS pixels of the narrowest phones in common use
SECONDS = 300

# The page in a frame as wide as a phone: headless windows are 500 pixels wide at least. Which elements stick out?
FRAME = """<!DOCTYPE html><iframe src="/framed/{name}" style="width:{width}px;height:900px;border:0"></iframe>
<script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, width = page.documentElement.clientWidth;
  const out = [...page.body.querySelectorAll("*")].filter((e) => !e.closest("thead, .unseen"))
    .filter((e) => e.getBoundingClientRect().right > width + 1).map((e) => e.tagName + "." + e.className);
  const found = {{width, scroll: page.documentElement.scrollWidth, out, shown: page.body.innerText.length}};
  document.body.append(Object.assign(document.createElement("pre"), {{textContent: JSON.stringify(found)}}));
}};
</script>"""


@dataclass
class Site:
    """Serves pages from memory on loopback and remembers what was asked of it, under whatever name: see ``rule``."""

    pages: Mapping[str, bytes]
    headers: Mapping[str, str]
    port: int = 0
    asked: list[str] = field(default_factory=list)

    _connections: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def __aenter__(self) -> Site:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_servers([self._server])
        for task in self._connections:  # a browser opens some before it has anything to ask
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda task: self._connections.pop(task).close())

    @property
    def rule(self) -> str:
        """Whatever host a page names, the browser asks us: nothing that it wants from elsewhere goes unseen."""
        return f"--host-resolver-rules=MAP * 127.0.0.1:{self.port}"

    def _answer(self, path: str) -> tuple[bytes, Mapping[str, str]]:
        kind, _, name = path[1:].rpartition("/")
        body = self.pages.get(name, b"")
        if kind == "phone":
            return FRAME.format(name=name, width=PHONE_WIDTH).encode(), {}
        if kind == "framed":
            policy = self.headers["Content-Security-Policy"].replace("frame-ancestors 'none'", "frame-ancestors 'self'")
            return body, {"Content-Security-Policy": policy}
        return body, self.headers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split("\r\n")[0].split(" ")
            host = re.search(r"(?im)^host: (\S+)", head)
            self.asked.append(f"{method} {host[1] if host else ''}{path}")
            body, headers = self._answer(path)
            lines = [f"{key}: {value}" for key, value in headers.items()]
            top = "\r\n".join(
                ["HTTP/1.1 200 OK", "Content-Type: text/html; charset=utf-8", "Connection: close", *lines]
            )
            writer.write(top.encode() + b"\r\n\r\n" + body)
            await writer.drain()


PAGES = {
    "busy": page.render(status_documents.busy(), refresh=False),
    "troubled": page.render(status_documents.troubled(), refresh=False),
    "hostile": page.render(_poisoned(status_documents.troubled()), refresh=False),
    "many": page.render(status_documents.many(1000), refresh=False),
}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site(PAGES, page.HEADERS) as found:
        yield found


async def visit(site: Site, path: str) -> tuple[str, list[str]]:
    """The document after loading, and what the console said."""
    url = f"http://127.0.0.1:{site.port}{path}"
    with tempfile.TemporaryDirectory(prefix="chromium", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(
                BROWSER,
                *FLAGS,
                site.rule,
                f"--user-data-dir={profile}",
                "--virtual-time-budget=3000",
                "--dump-dom",
                url,
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, err.decode(errors="replace")
    return out.decode(errors="replace"), re.findall(r".*CONSOLE.*", err.decode(errors="replace"))


@pytest.mark.parametrize("name", ["busy", "troubled", "hostile"])
async def test_the_page_loads_without_a_complaint_and_requests_nothing_else(site: Site, name: str) -> None:
    document, console = await visit(site, f"/{name}")
    assert "drabridge status" in document
    assert console == []
    assert site.asked == [f"GET 127.0.0.1:{site.port}/{name}"]


@pytest.mark.parametrize("name", PAGES)
async def test_it_fits_a_phone(site: Site, name: str) -> None:
    document, _ = await visit(site, f"/phone/{name}")
    found = json.loads(html.unescape(document.rpartition("<pre>")[2].partition("</pre>")[0]))
    assert found["width"] == PHONE_WIDTH
    assert found["shown"] > 500
    assert found["out"] == []
    assert found["scroll"] == PHONE_WIDTH


async def test_a_page_that_breaks_these_rules_is_noticed() -> None:
    """What the tests above rely on: a blocked style, a request to elsewhere and something too wide do show."""
    foreign = b'<img src="http://tracker.example/x.png"><style>p{width:900px}</style><p style="width:900px">wide</p>'
    async with Site({"bad": foreign}, {"Content-Security-Policy": "style-src 'none'; frame-ancestors 'none'"}) as site:
        _, console = await visit(site, "/bad")
        assert any("style" in line for line in console), console
        assert "GET tracker.example/x.png" in site.asked
    async with Site({"bad": foreign}, {"Content-Security-Policy": ""}) as site:
        document, _ = await visit(site, "/phone/bad")
    found = json.loads(html.unescape(document.rpartition("<pre>")[2].partition("</pre>")[0]))
    assert found["out"] == ["P."]
