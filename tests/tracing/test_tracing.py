"""An engine's trace contains prefixd's spans: the engine's by OpenTelemetry's SDK and its exporter,
prefixd's by its own, both decoded by the official messages."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import prefixd
import prefixd.aio
from collector import Collector
from google.protobuf import descriptor_pb2
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support import PATIENCE_MS, DaemonTest, Engine

ROOT = Path(__file__).resolve().parents[2]
CALL = "prefixd.v1.PrefixCache/"
TOKENS = 130


def unknown_fields(message) -> list:
    """Names where the message, or one within it, has fields that its type does not know."""
    found = [message.DESCRIPTOR.full_name] if len(UnknownFieldSet(message)) else []
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in value if field.is_repeated else [value]:
            found += unknown_fields(one)
    return found


class TracingTest(DaemonTest):
    def setUp(self) -> None:
        super().setUp()
        self.collector = Collector()
        self.addCleanup(self.collector.close)
        self.daemon.options = ["--otlp-endpoint", self.collector.url, "--metrics", "127.0.0.1:0"]
        self.daemon.start()

    def tracer(self, sampler=sampling.ALWAYS_ON) -> trace.Tracer:
        provider = TracerProvider(sampler, Resource.create({"service.name": "engine"}))
        exporter = OTLPSpanExporter(endpoint=self.collector.url)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        self.addCleanup(provider.shutdown)
        return provider.get_tracer("engine")

    def scrape(self) -> dict[str, Metric]:
        """The metrics as OpenMetrics, read by Prometheus' own Python package."""
        said = "".join(self.daemon.said)
        request = urllib.request.Request(re.search(r"metrics: (http://\S+)", said).group(1))
        request.add_header("Accept", "application/openmetrics-text; version=1.0.0")
        with urllib.request.urlopen(request, timeout=60) as reply:
            self.assertIn("application/openmetrics-text", reply.headers["Content-Type"])
            text = reply.read().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def expect_within(self, child, parent) -> None:
        self.assertEqual(child.trace_id, parent.trace_id, child.name)
        self.assertEqual(child.parent_span_id, parent.span_id, child.name)
        self.assertLessEqual(parent.start_time_unix_nano, child.start_time_unix_nano, child.name)
        self.assertLessEqual(child.end_time_unix_nano, parent.end_time_unix_nano, child.name)

    def test_calls_under_opentelemetrys_current_span_stand_below_it(self):
        engine = Engine()
        space = engine.open(self.attached())
        with self.tracer().start_as_current_span("generate") as span:
            self.assertEqual(engine.store(space, TOKENS), TOKENS)
            with space.acquire(engine.tokens(TOKENS)) as lease:
                self.assertEqual(lease.wait_all(), TOKENS)
        spans = self.collector.wait_for(CALL + "Acquire", CALL + "Reserve", CALL + "Commit")
        (generate,) = self.collector.spans("engine")
        self.assertEqual(generate.span_id, span.get_span_context().span_id.to_bytes(8, "big"))
        for name in ("Acquire", "Reserve", "Commit"):
            self.expect_within(spans[CALL + name], generate)
        for name in ("match", "room"):
            self.expect_within(spans["prefixd." + name], spans[CALL + "Acquire"])
        self.expect_within(spans["prefixd.commit"], spans[CALL + "Commit"])
        facts = {a.key: a.value for a in spans[CALL + "Acquire"].attributes}
        self.assertEqual(facts["rpc.system"].string_value, "grpc")
        self.assertEqual(facts["rpc.grpc.status_code"].int_value, 0)
        self.assertEqual(facts["prefixd.cached_tokens"].int_value, TOKENS)
        for body in self.collector.bodies:
            message = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            self.assertEqual(unknown_fields(message), [])

    def test_a_traced_call_stands_beside_the_latency_that_counts_it(self):
        engine = Engine()
        space = engine.open(self.attached())
        self.assertEqual(engine.store(space, TOKENS), TOKENS)
        with self.tracer().start_as_current_span("generate"):
            space.acquire(engine.tokens(TOKENS)).release()
        acquire = self.collector.wait_for(CALL + "Acquire")[CALL + "Acquire"]
        took_s = (acquire.end_time_unix_nano - acquire.start_time_unix_nano) / 1e9
        samples = self.scrape()["prefixd_request_duration_seconds"].samples
        ((sample, exemplar),) = [(s, s.exemplar) for s in samples if s.exemplar and s.labels["verb"] == "acquire"]
        self.assertEqual(exemplar.labels, {"trace_id": acquire.trace_id.hex(), "span_id": acquire.span_id.hex()})
        self.assertAlmostEqual(exemplar.value, took_s, places=9)
        self.assertAlmostEqual(float(exemplar.timestamp), acquire.end_time_unix_nano / 1e9, places=2)
        self.assertLessEqual(took_s, float(sample.labels["le"]))
        self.assertEqual([s.labels for s in samples if s.exemplar and s.labels["verb"] == "reserve"], [])

    def test_each_call_belongs_to_the_span_that_is_current_when_it_is_made(self):
        engine, tracer = Engine(), self.tracer()
        space = engine.open(self.attached())
        tokens = engine.tokens(TOKENS)
        with tracer.start_as_current_span("Reserve"):
            plan = space.reserve(tokens)
        for layer, (key, value) in enumerate(engine.cache(TOKENS)):
            self.assertTrue(plan.write_packed(layer=layer, begin=0, key=key, value=value))
        with tracer.start_as_current_span("Commit"):
            self.assertEqual(plan.commit(TOKENS, sequence_end=True).stored_tokens, TOKENS)
        with tracer.start_as_current_span("Match"):
            space.match(tokens)
        with tracer.start_as_current_span("Acquire"):
            prefixd.acquire_set([space], tokens)
        names = ("Reserve", "Commit", "Match", "Acquire")
        spans = self.collector.wait_for(*(CALL + name for name in names))
        engines = {span.name: span.span_id for span in self.collector.spans("engine")}
        for name in names:
            self.assertEqual(spans[CALL + name].parent_span_id, engines[name], name)

    def test_pages_that_are_sent_and_fetched_by_the_librarys_threads_belong_to_the_trace(self):
        engine = Engine()
        space = engine.open(self.attached(arena=False, staging_bytes=0))
        with self.tracer().start_as_current_span("generate"):
            self.assertEqual(engine.store(space, TOKENS), TOKENS)
            with space.acquire(engine.tokens(TOKENS)) as lease:
                self.assertEqual(lease.wait_all(), TOKENS)
        spans = self.collector.wait_for(CALL + "Put", CALL + "Fetch", "prefixd.commit")
        (generate,) = self.collector.spans("engine")
        self.assertEqual(spans[CALL + "Fetch"].parent_span_id, generate.span_id)
        self.assertEqual(spans[CALL + "Put"].parent_span_id, generate.span_id)

    def test_a_trace_is_named_by_its_headers_too_and_what_is_no_header_is_left_out(self):
        engine = Engine()
        space = engine.open(self.attached())
        tokens = engine.tokens(TOKENS)
        with prefixd.trace("nonsense"):
            space.match(tokens)
        with prefixd.trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"):
            space.match(tokens)
        with prefixd.trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=1"):
            with prefixd.trace(""):
                space.match(tokens)
            space.acquire(tokens).release()
        space.match(tokens)
        spans = self.collector.wait_for(CALL + "Acquire")
        acquire = spans[CALL + "Acquire"]
        self.assertEqual(acquire.trace_id.hex(), "4bf92f3577b34da6a3ce929d0e0e4736")
        self.assertEqual(acquire.parent_span_id.hex(), "00f067aa0ba902b7")
        self.assertEqual(acquire.trace_state, "a=1")
        self.assertNotIn(CALL + "Match", spans)

    def test_a_span_that_is_not_sampled_makes_none_of_prefixds(self):
        engine = Engine()
        space = engine.open(self.attached())
        with self.tracer(sampling.ALWAYS_OFF).start_as_current_span("generate"):
            space.match(engine.tokens(TOKENS))
        with self.tracer().start_as_current_span("generate"):
            space.acquire(engine.tokens(TOKENS)).release()
        self.collector.wait_for(CALL + "Acquire")
        self.assertEqual([s.name for s in self.collector.spans() if "Match" in s.name], [])

    def test_awaited_calls_belong_to_the_tasks_span(self):
        tracer, engine = self.tracer(), Engine()

        async def one(space: prefixd.aio.Space, name: str) -> None:
            with tracer.start_as_current_span(name):
                await asyncio.sleep(0)
                await space.match(engine.tokens(TOKENS), request_id=name)

        async def both() -> None:
            async with prefixd.aio.connect(self.daemon.address) as client:
                await client.wait_attached(PATIENCE_MS)
                space = await client.open_space(
                    model="tiny", layers=engine_layers(engine), weights=bytes([1]) * 32
                )
                await asyncio.gather(one(space, "a"), one(space, "b"))

        asyncio.run(both())
        self.collector.wait_for(CALL + "Match")
        self.daemon.process.terminate()  # sends what is left
        self.daemon.process.wait()
        engines = {span.name: span.span_id for span in self.collector.spans("engine")}
        matches = [span.parent_span_id for span in self.collector.spans() if "Match" in span.name]
        self.assertCountEqual(matches, engines.values())


class EncryptedTest(DaemonTest):
    """A collector that is reached by TLS, and wants a key."""

    KEY = ("Authorization", "Bearer a=b, c")

    def setUp(self) -> None:
        super().setUp()
        self.certificate = self.folder / "collector.pem"
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-subj", "/CN=collector", "-addext", names, "-keyout", self.certificate, "-out", f"{self.certificate}.crt"],
            check=True, capture_output=True,
        )
        with self.certificate.open("a") as file:
            file.write(Path(f"{self.certificate}.crt").read_text())
        self.collector = Collector(self.certificate, self.KEY)
        self.addCleanup(self.collector.close)
        self.headers = self.folder / "headers"
        self.headers.write_text(f"# the collector's key\n{': '.join(self.KEY)}\n")
        self.headers.chmod(0o600)

    def call(self, *options: str) -> None:
        self.daemon.options = ["--trace-ratio", "1", *options]
        self.daemon.start()
        engine = Engine()
        engine.open(self.attached()).match(engine.tokens(TOKENS))

    def failed(self) -> int:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            counters = self.daemon.ctl("stats")["counters"]
            if counters.get("trace.exports_failed", 0):
                return counters["trace.exports_failed"]
        raise AssertionError("nothing failed")

    def test_a_collector_whose_certificate_is_trusted_gets_spans_and_its_key(self):
        named = "--otlp-endpoint", self.collector.url, "--otlp-headers-file", str(self.headers)
        self.call(*named, "--otlp-ca-file", f"{self.certificate}.crt")
        self.collector.wait_for(CALL + "Match")

    def test_opentelemetrys_variables_name_collector_authority_and_key(self):
        self.daemon._environment |= {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": self.collector.url.replace("127.0.0.1", "localhost"),
            "OTEL_EXPORTER_OTLP_CERTIFICATE": f"{self.certificate}.crt",
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20a%3Db%2C%20c",
        }
        self.call()
        self.collector.wait_for(CALL + "Match")

    def test_a_collector_whose_certificate_nobody_signed_gets_nothing(self):
        self.call("--otlp-endpoint", self.collector.url, "--otlp-headers-file", str(self.headers))
        self.assertGreater(self.failed(), 0)
        self.assertEqual(self.collector.bodies, [])

    def test_a_file_of_headers_that_others_can_read_keeps_prefixd_from_starting(self):
        self.headers.chmod(0o644)
        with self.assertRaisesRegex(AssertionError, f"otlp-headers-file: {self.headers} may be read or written by others"):
            self.call("--otlp-endpoint", self.collector.url, "--otlp-headers-file", str(self.headers))


def engine_layers(engine: Engine) -> list[prefixd.Layer]:
    return [prefixd.FullLayer(engine.heads, engine.dim, engine.dim, engine.formats)]


class SchemaTest(unittest.TestCase):
    def test_every_field_of_prefixds_subset_is_one_of_the_published_messages(self):
        published = {}
        for file in (trace_service_pb2, trace_pb2, common_pb2, resource_pb2):
            for name, message in file.DESCRIPTOR.message_types_by_name.items():
                published[name] = message
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "set")
            proto = ROOT / "proto"
            subprocess.run(
                ["protoc", f"-I{proto}", f"--descriptor_set_out={out}", proto / "prefixd/otlp/trace.proto"],
                check=True,
            )
            (file,) = descriptor_pb2.FileDescriptorSet.FromString(Path(out).read_bytes()).file
        self.assertGreater(len(file.message_type), 8)
        for message in file.message_type:
            for field in message.field:
                theirs = published[message.name].fields_by_name[field.name]
                self.assertEqual(
                    (field.number, field.type, field.label == field.LABEL_REPEATED),
                    (theirs.number, theirs.type, theirs.is_repeated),
                    f"{message.name}.{field.name}",
                )
                self.assertEqual(
                    field.type_name.rsplit(".")[-1],
                    theirs.message_type.name if theirs.message_type else theirs.enum_type.name if theirs.enum_type else "",
                )
            for enum in message.enum_type:
                theirs = published[message.name].enum_types_by_name[enum.name]
                self.assertEqual({v.name: v.number for v in enum.value}, {v.name: v.number for v in theirs.values})
        flags = trace_pb2.DESCRIPTOR.enum_types_by_name["SpanFlags"]
        (ours,) = file.enum_type
        self.assertEqual({v.name: v.number for v in ours.value}, {v.name: v.number for v in flags.values})


if __name__ == "__main__":
    unittest.main()
