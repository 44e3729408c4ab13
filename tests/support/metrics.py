"""Reading metrics as others do: a scrape over HTTP, and an OTLP receiver."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Scrape:
    """The samples of one `/metrics`, by name and labels."""

    samples: Mapping[tuple[str, Labels], float]

    def value(self, name: str, **labels: str) -> float:
        """One sample. Raises `KeyError`."""
        return self.samples[name, frozenset(labels.items())]

    def total(self, name: str) -> float:
        """The sum over all labels; at least one sample is there."""
        found = [value for (other, _), value in self.samples.items() if other == name]
        assert found, f"no {name}"
        return sum(found)

    @property
    def names(self) -> dict[str, set[str]]:
        """The labels of every name."""
        labels: dict[str, set[str]] = {}
        for name, pairs in self.samples:
            labels.setdefault(name, set()).update(label for label, _ in pairs)
        return labels


def fetch(address: str, path: str = "/metrics") -> str:
    """A page of the endpoint. Raises `urllib.error.URLError`."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
        text: str = response.read().decode()
    return text


async def scrape(address: str) -> Scrape:
    """What Prometheus would read."""
    families = text_string_to_metric_families(await asyncio.to_thread(fetch, address))
    return Scrape(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
    )


class Meters:
    """A meter, and what was recorded with it, by OTLP name."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self.meter = provider.get_meter("test")

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        return {
            metric.name: metric
            for resource in resources
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name: str) -> dict[str, float]:
        """Of a counter or gauge, by its one label, "" without."""
        return {
            next(iter(point.attributes.values()), ""): point.value
            for point in self.metrics()[name].data.data_points
        }

    def count(self, name: str) -> int:
        """How many values a histogram was told of."""
        return sum(point.count for point in self.metrics()[name].data.data_points)


@dataclass
class MetricsReceiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """A collector over gRPC that keeps what it gets."""

    requests: list[metrics_service_pb2.ExportMetricsServiceRequest] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.requests.append(request)
        self.arrived.set()
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def last(self, service: str) -> dict[str, Any]:
        """The newest metrics of a service, by name."""
        found: dict[str, Any] = {}
        for request in self.requests:
            for resource in request.resource_metrics:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                if names["service.name"] == service:
                    scopes = resource.scope_metrics
                    found = {metric.name: metric for scope in scopes for metric in scope.metrics}
        return found


@contextmanager
def receiving() -> Iterator[MetricsReceiver]:
    """A collector on a free port."""
    receiver = MetricsReceiver()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)
        receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield receiver
        finally:
            server.stop(None).wait()
