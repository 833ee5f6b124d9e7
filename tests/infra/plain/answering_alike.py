"""Something at an HTTP address that answers every request alike, and is no Weaviate that a bank could be kept on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from infra.weaviate_address import WeaviateAddress


@contextmanager
def answering_alike(body: bytes, port: int = 0) -> Iterator[WeaviateAddress]:
    """Its address, for as long as the context lasts, at that port or at a free one; nobody speaks gRPC there."""

    class Alike(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Alike)
    thread = threading.Thread(target=server.serve_forever, daemon=True)  # never what keeps a process from its end
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield WeaviateAddress(http_url=url, grpc_url="127.0.0.1:9", api_key="k", version="")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
