"""The HTTP server that Prometheus scrapes, on a thread of its own."""

from __future__ import annotations

import socket
import socketserver
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from paceline.config import MAX_PORT, MetricsConfig, split_address
from paceline.errors import ConfigError

PATH = "/metrics"
_POLL_S = 0.1
"""How soon a stop is noticed."""
READ_TIMEOUT_S = 10.0
"""A peer that connects and asks nothing holds a thread and a socket no longer."""


class MetricsEndpoint:
    """`GET /metrics` of one registry. Everything else is 404."""

    def __init__(self, server: ThreadingHTTPServer, host: str) -> None:
        self.address = f"{f'[{host}]' if ':' in host else host}:{server.server_port}"
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )

    @classmethod
    def open(cls, config: MetricsConfig, registry: CollectorRegistry) -> MetricsEndpoint:
        """Serve at the first free port from that of `listen` on, of as many as may be tried.

        Blocks for a name look-up. Raises `ConfigError` when there is none.
        """
        assert config.listen is not None, "asked for"
        host, first = split_address(config.listen)
        last = min(first + config.port_tries - 1, MAX_PORT) if first else first
        handler = _handler(registry)
        for port in range(first, last + 1):
            try:
                endpoint = cls(_server(host, port, handler), host)
            except OSError as error:
                if port == last:
                    tried = "" if port == first else f", nor any port up to {last}"
                    problem = error.strerror or str(error)
                    raise ConfigError(
                        f"telemetry.metrics.listen: cannot bind {config.listen}{tried}: {problem}"
                    ) from error
            else:
                endpoint._thread.start()
                return endpoint
        raise AssertionError("at least one port is tried")

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(registry: CollectorRegistry) -> type[MetricsHandler]:
    class Handler(MetricsHandler):
        timeout = READ_TIMEOUT_S

        def do_GET(self) -> None:  # noqa: N802  (http.server's spelling)
            if self.path.partition("?")[0] != PATH:
                self.send_error(404)
            else:
                super().do_GET()

    Handler.registry = registry
    return Handler


def _server(host: str, port: int, handler: type[MetricsHandler]) -> ThreadingHTTPServer:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]

    class Server(ThreadingHTTPServer):
        address_family = family

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)  # HTTPServer would ask a name server
            self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that left early is no event."""

    return Server((str(address[0]), port), handler)
