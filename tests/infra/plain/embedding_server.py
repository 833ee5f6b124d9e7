"""A tiny `/v1/embeddings` server: real HTTP on loopback, vectors of a few dimensions that texts share words by."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np


class EmbeddingServer:
    """What serves, and what it was asked."""

    def __init__(self, dimension: int, model: str) -> None:
        self.dimension, self.model = dimension, model
        #: what is part of each vector: another one is another model by the same name
        self.model_of_vectors = model
        #: every text that was sent, in order
        self.texts: list[str] = []
        #: answers until it breaks off, as a server that is killed; None = never
        self.answers_left: int | None = None
        self._lock = threading.Lock()
        self.url = ""

    def answer(self, texts: list[str]) -> list[list[float]] | None:
        """One vector for each text; None where it is dead."""
        with self._lock:
            if self.answers_left is not None:
                self.answers_left -= 1
                if self.answers_left < 0:
                    return None
            self.texts += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        total = np.zeros(self.dimension)
        for word in ["", *text.lower().split()]:
            digest = sha256(f"{self.model_of_vectors}/{word}".encode()).digest()
            total += np.frombuffer((digest * self.dimension)[: self.dimension], dtype=np.int8).astype(np.float64)
        return [float(value) for value in total]


@contextmanager
def embedding_server(dimension: int = 16, model: str = "tiny") -> Iterator[EmbeddingServer]:
    """A server for as long as the body runs."""
    serving = EmbeddingServer(dimension, model)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The list of models, which is asked for to see whether somebody is there."""
            self._answered({"object": "list", "data": [{"id": serving.model, "object": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = serving.answer(asked["input"]) if asked["model"] == serving.model else None
            if rows is None:
                self.close_connection = True
                return
            data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]
            self._answered({"object": "list", "model": serving.model, "data": data})

        def _answered(self, whole: object) -> None:
            body = json.dumps(whole).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield serving
        finally:
            server.shutdown()
            thread.join()
