"""A stand-in for the hub: the part of its protocol that huggingface_hub's client uses, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Serves folders as repositories. break_after: bytes of a file after which the connection drops, once."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.break_after: int | None = None
        self.damage: str | None = None
        self.slow = 0.0
        self.served: list[tuple[str, int]] = []  # file, first byte

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            self.info(match.group(1))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self.file(match.group(1), match.group(2), with_body)
        else:
            self.plain(404, b"{}")

    def info(self, repository: str) -> None:
        folder = self.server.repositories.get(repository)
        if folder is None:
            self.plain(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            return
        siblings = []
        for file in sorted(f for f in folder.rglob("*") if f.is_file()):
            entry = {
                "rfilename": str(file.relative_to(folder)),
                "size": file.stat().st_size,
                "blobId": digest(file)[:40],
            }
            if file.suffix == ".safetensors":
                entry["lfs"] = {"sha256": digest(file), "size": file.stat().st_size, "pointerSize": 100}
            siblings.append(entry)
        self.plain(
            200,
            json.dumps(
                {
                    "_id": "1",
                    "id": repository,
                    "modelId": repository,
                    "sha": COMMIT,
                    "private": False,
                    "tags": [],
                    "downloads": 0,
                    "likes": 0,
                    "siblings": siblings,
                }
            ).encode(),
        )

    def file(self, repository: str, name: str, with_body: bool) -> None:
        folder = self.server.repositories.get(repository)
        file = folder / name if folder else None
        if file is None or not file.is_file():
            self.plain(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data, etag = file.read_bytes(), f'"{digest(file)}"'
        if self.server.damage == name:
            data = data[:-1] + bytes([data[-1] ^ 1])
        first = int(re.search(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-").group(1))
        headers = {"ETag": etag, "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if file.suffix == ".safetensors":
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if not with_body:
            self.plain(200, data, headers, with_body=False)
            return
        self.server.served.append((name, first))
        rest = data[first:]
        limit = self.server.break_after
        if limit is not None and len(rest) > limit:
            self.server.break_after = None
            self.start(206 if first else 200, len(rest), headers)
            self.wfile.write(rest[:limit])
            self.wfile.flush()
            self.close_connection = True
            return
        self.start(206 if first else 200, len(rest), headers)
        for at in range(0, len(rest), 1 << 16):
            self.wfile.write(rest[at : at + (1 << 16)])
            if self.server.slow:
                threading.Event().wait(self.server.slow)

    def plain(self, status: int, body: bytes, headers: dict[str, str] | None = None, with_body: bool = True) -> None:
        self.start(status, len(body), headers or {})
        if with_body and self.command != "HEAD":
            self.wfile.write(body)

    def start(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def hub(repositories: dict[str, Path]) -> Iterator[Hub]:
    with Hub(repositories) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()
