"""Serve a GGUF file with the HTTP server of llama.cpp, on loopback, until a signal or the end of standard input.

    .llama-venv/bin/python bench/real_model/llama_server.py MODEL [--slots N] [--context TOKENS]

Run as a file, in the environment of `llama.lock`: it imports nothing of this project. The address is printed when the
port is chosen, before the model is loaded; until it is, every path answers 503.
"""

import argparse
import os
import signal
import socket
import sys
import threading

import xllamacpp

#: below the ports that the system gives to clients: one of those may be taken while the model is being loaded
FIRST_PORT, LAST_PORT = 20_000, 32_000


def main() -> None:
    """Print the address, then `ready` once the model is loaded; serve until told to end."""
    parser = argparse.ArgumentParser(description="Serve a GGUF file over HTTP, on loopback.")
    parser.add_argument("model", help="path of a .gguf file")
    parser.add_argument("--slots", type=int, default=1, help="requests at once")
    parser.add_argument("--context", type=int, default=4096, help="tokens of one slot")
    chosen = parser.parse_args()
    port = _free_port()
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = chosen.model
    parameters.n_ctx = chosen.context * chosen.slots
    parameters.n_parallel = chosen.slots
    # More threads than that fight for the cores of a shared machine, and are slower.
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.use_jinja = True
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    _server = xllamacpp.Server(parameters)
    print("ready", flush=True)
    ended.wait()
    # An answer that is being written would be waited for; there is nothing to save.
    os._exit(0)


def _free_port() -> int:
    for port in range(FIRST_PORT, LAST_PORT):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise SystemExit("no free port")


if __name__ == "__main__":
    main()
