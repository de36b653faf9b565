"""Run a command on a pseudo-terminal and draw what a person would see: make_picture.py OUT.svg TITLE COMMAND...

A browser turns the SVG into the PNG of the README: chromium --headless --screenshot=demo.png OUT.svg.
"""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 100


def capture(command: list[str]) -> str:
    """What `command` writes to a terminal."""
    main, side = pty.openpty()
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=side, stderr=side, stdin=subprocess.DEVNULL, env=environment):
        os.close(side)
        shown = b""
        while True:
            try:
                chunk = os.read(main, 65536)
            except OSError:  # the command has ended
                break
            if not chunk:
                break
            shown += chunk
    return shown.decode("utf-8", "replace").replace("\r\n", "\n")


def main() -> None:
    """Write the picture."""
    out, title, *command = sys.argv[1:]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {' '.join(command)}\n" + capture(command)), soft_wrap=False)
    console.save_svg(out, title=title)


if __name__ == "__main__":
    main()
