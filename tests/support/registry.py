"""A registry of images on loopback, of what layouts hold and clients push, for whoever has the right credentials."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.layers import MANIFEST, REF_NAME, Layout, sha256

USER, PASSWORD = "kubelet", "s3cret:word"
IDENTITY_TOKEN = "id-7c1f0b"
_TOKEN = "token-5b9e"
_DIGEST_HEADER = "Docker-Content-Digest"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes in the middle of a request."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Registry:
    """
    A registry that serves; `scheme` of its challenges is Basic or Bearer, None lets everybody in.

    Blobs are answered only while `blobs_flow` is set. `seen` has the paths of all requests that were let in. With
    `is_full` nothing can be pushed.
    """

    def __init__(self, repositories: Mapping[str, Layout], scheme: str | None) -> None:
        self.repositories = dict(repositories)
        self.scheme = scheme
        self.seen: list[str] = []
        self.is_full = False
        self._uploads: dict[str, bytes] = {}
        self.blob_asked = threading.Event()
        self.blobs_flow = threading.Event()
        self.blobs_flow.set()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def serve(self) -> None:
        """Serve until `close`."""
        self._server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        """End it."""
        self.blobs_flow.set()
        self._server.shutdown()
        self._server.server_close()

    def is_let_in(self, authorization: str) -> bool:
        """Tell whether a header of a request to a repository is one of somebody who is let in."""
        if self.scheme == "Bearer":
            return authorization == f"Bearer {_TOKEN}"
        return self.scheme is None or is_user(authorization)

    def find(self, path: str) -> tuple[bytes, str] | None:
        """Return the document or blob that is meant by a path below `/v2/`, and its kind."""
        name, _, rest = path.removeprefix("/v2/").rpartition("/manifests/" if "/manifests/" in path else "/blobs/")
        layout = self.repositories.get(name)
        if layout is None:
            return None
        if "/blobs/" in path:
            self.blob_asked.set()
            self.blobs_flow.wait()
        else:
            for entry in layout.index:
                annotations = entry.get("annotations")
                if isinstance(annotations, dict) and annotations.get(REF_NAME) == rest:
                    rest = str(entry["digest"])
        data = layout.files.get("blobs/" + rest.replace(":", "/"))
        return None if data is None else (data, _media_type(data))

    def put(self, path: str, data: bytes, digest: str) -> str:
        """Take a part of a blob, all of a blob with a digest, or a manifest; return the place of the rest."""
        name, _, rest = path.removeprefix("/v2/").rpartition("/manifests/" if "/manifests/" in path else "/blobs/")
        layout = self.repositories.setdefault(name, Layout())
        if "/manifests/" in path:
            entry = layout.blob(data, _media_type(data))
            layout.index[:] = [one for one in layout.index if one["annotations"] != {REF_NAME: rest}]
            layout.index.append({**entry, "annotations": {REF_NAME: rest}})
            return path
        self._uploads[path] = self._uploads.get(path, b"") + data
        if digest:
            assert sha256(self._uploads[path]) == digest
            layout.blob(self._uploads.pop(path), "application/octet-stream")
            return f"/v2/{name}/blobs/{digest}"
        return path if rest != "uploads/" else f"{path}{len(self.seen)}"

    def _handler(registry) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path == "/token":
                    self.token(is_user(self.headers.get("Authorization", "")))
                elif not registry.is_let_in(self.headers.get("Authorization", "")):
                    self.answer(401, b"{}", **{"WWW-Authenticate": self.challenge()})
                else:
                    registry.seen.append(url.path)
                    found = (b"{}", "application/json") if url.path == "/v2/" else registry.find(url.path)
                    if found is None:
                        self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}')
                    else:
                        self.answer(200, found[0], found[1])

            do_HEAD = do_GET

            def do_POST(self) -> None:
                if self.path.startswith("/v2/"):
                    self.write(b"")
                    return
                size = self.headers["Content-Length"] or int(self.rfile.readline(), 16)  # a chunk may be all
                fields = parse_qs(self.rfile.read(int(size)).decode())
                self.close_connection = True
                self.token(fields.get("refresh_token") == [IDENTITY_TOKEN])

            def do_PATCH(self) -> None:
                self.write(self.body())

            do_PUT = do_PATCH

            def body(self) -> bytes:
                """Read the body of a request, which may come in chunks."""
                if self.headers["Content-Length"] is not None:
                    return self.rfile.read(int(self.headers["Content-Length"]))
                data = b""
                while size := int(self.rfile.readline(), 16):
                    data += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return data

            def write(self, data: bytes) -> None:
                """Take an upload, a part of one, or a manifest."""
                url = urlsplit(self.path)
                if not registry.is_let_in(self.headers.get("Authorization", "")):
                    self.answer(401, b"{}", **{"WWW-Authenticate": self.challenge()})
                    return
                registry.seen.append(f"{self.command} {url.path}")
                if registry.is_full:
                    self.answer(507, b'{"errors": [{"code": "DENIED", "message": "no room is left"}]}')
                    return
                place = registry.put(url.path, data, parse_qs(url.query).get("digest", [""])[0])
                self.answer(202 if self.command != "PUT" else 201, b"", Location=place, Range="0-0")

            def token(self, is_known: bool) -> None:
                answer = {"token": _TOKEN, "access_token": _TOKEN, "expires_in": 300}
                self.answer(200 if is_known else 401, json.dumps(answer if is_known else {}).encode())

            def challenge(self) -> str:
                realm = f'realm="http://{registry.host}/token",service="registry"'
                return f"Bearer {realm}" if registry.scheme == "Bearer" else f"Basic {realm}"

            def answer(self, code: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
                self.send_response(code)
                for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextmanager
def registry(repositories: Mapping[str, Layout], scheme: str | None = None) -> Iterator[Registry]:
    """Serve repositories for the length of a with block."""
    served = Registry(repositories, scheme)
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield served
    finally:
        served.close()
        thread.join()


def is_user(authorization: str) -> bool:
    """Tell whether a header has the user's name and password."""
    return authorization == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def _media_type(data: bytes) -> str:
    try:
        document = json.loads(data)
    except ValueError:
        return "application/octet-stream"
    return str(document.get("mediaType") or (MANIFEST if "layers" in document else "application/octet-stream"))
