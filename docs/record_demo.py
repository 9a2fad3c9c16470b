"""``python -m docs.record_demo`` runs the real demo in a pseudo-terminal and draws its output, docs/images/demo.svg.

As root, because only then the demo can unplug devices. Steps that name temporary paths of this machine are left out.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).resolve().parent / "images/demo.svg"
COLUMNS, ROWS = 124, 50
STEPS = range(3, 10)  # from the first pod to `drabridge status`
DARK = (72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)
BRIGHT = (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)
THEME = TerminalTheme((22, 27, 34), (201, 209, 217), [*DARK, *BRIGHT])
# Rich's own format without its web fonts: the picture loads nothing from elsewhere.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""  # noqa: E501


def run_demo() -> str:
    """Everything that ``drabridge demo`` writes to a terminal, with its colours. Raises SystemExit if it fails."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen([sys.executable, "-m", "drabridge", "demo"], stdout=follower, stderr=follower) as demo:
        os.close(follower)
        written = bytearray()
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError as error:
                if error.errno == errno.EIO:  # Linux' way to say that nobody has the other end open
                    break
                raise
            if not chunk:
                break
            written += chunk
    os.close(leader)
    if demo.returncode:
        raise SystemExit(f"the demo failed:\n{written.decode(errors='replace')}")
    return written.decode().replace("\r\n", "\n")


def chosen(output: str) -> str:
    """Return the steps of the output that the picture shows, each with a blank line before it."""
    blocks = re.split(r"\n(?=(?:\x1b\[[0-9;]*m)?[0-9]+\. )", output)
    steps = {
        int(found[1]): block.rstrip("\n")
        for block in blocks
        if (found := re.match(r"(?:\x1b\[[0-9;]*m)?([0-9]+)\. ", block))
    }
    return "$ make demo\n...\n\n" + "\n".join(steps[number] + "\n" for number in STEPS)


def draw(text: str) -> str:
    """Return an SVG of a terminal with this text. The same text makes the same picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=False)
    return console.export_svg(title="make demo", theme=THEME, code_format=FORMAT, unique_id="demo")


if __name__ == "__main__":
    PICTURE.write_text("\n".join(line.rstrip() for line in draw(chosen(run_demo())).splitlines()) + "\n")
    print(f"wrote {PICTURE}", file=sys.stderr)
