"""Metrics that change while load lasts, and those that operators' actions change; operations_test.py has those of requests."""

import re
import signal
import threading
import unittest

from operations import ROOT, Cluster, eventually, samples, scrape
from operations_test import documented, family
from prompts import Prompts

# Faults that a smaller test makes: its file, and how it names what it sees.
ELSEWHERE = {
    "penstock_auth_failures_total": "tests/e2e/operator/operations_test.py",
    "penstock_client_disconnects_total": "tests/e2e/operator/operations_test.py",
    "penstock_edge_limit_hits_total": "tests/e2e/operator/operations_test.py",
    "penstock_slo_violations_total": "tests/e2e/operator/operations_test.py",
    "penstock_late_tokens_total": "tests/e2e/operator/operations_test.py",
    "penstock_log_dropped_total": "tests/e2e/operator/logs_test.py",
    "penstock_tls_certificate_expiry_timestamp_seconds": "tests/base/tls_test.cc",
    **dict.fromkeys(["penstock_kv_events_total", "penstock_kv_event_batches_total", "penstock_kv_event_connections_refused_total"],
                    "tests/e2e/operator/kv_events_test.py"),
    **dict.fromkeys([f"penstock_picker_{what}" for what in ("requests_total", "streams", "decision_seconds", "predicted_ttft_seconds")],
                    "tests/e2e/operator/gateway_test.py"),
    **dict.fromkeys(["penstock_grammar_compile_seconds", "penstock_grammar_mask_seconds", "penstock_grammar_masks_late_total"],
                    "tests/worker/grammar/grammar_host_test.cc"),
    "penstock_router_role_advice": "tests/router/fleet/role_keeper_test.cc",
    "penstock_router_role_turns_total": "tests/router/fleet/role_keeper_test.cc",
    **dict.fromkeys([f"penstock_kv_{what}_total" for what in (
        "spills_refused", "spills_dropped", "demotions_dropped", "swaps_refused", "dram_corrupt", "nvme_corrupt", "nvme_torn", "nvme_read_errors",
        "nvme_write_errors", "nvme_late_reads")], "tests/worker/runtime/store_metrics_test.cc"),
}
# Metrics of events that real processes do too seldom, or for too short a time.
OF_UNITS = {
    "penstock_draft_tokens_total": ("tests/e2e/exact_test.cc", "draft_tokens()"),
    "penstock_kv_rows": ("tests/e2e/mixed_window_test.cc", "kv_rows_used()"),
    "penstock_kv_evicted_tokens_total": ("tests/e2e/eviction_test.cc", "evicted_tokens()"),
    "penstock_kv_decode_evicted_tokens_total": ("tests/e2e/compaction_test.cc", "decode_evicted_tokens()"),
    "penstock_kv_compactions_total": ("tests/e2e/compaction_test.cc", "compactions()"),
    "penstock_kv_selected_tokens_total": ("tests/e2e/selection_test.cc", "selected_tokens()"),
    "penstock_kv_blend_reused_tokens_total": ("tests/e2e/blend_test.cc", "blend_reused_tokens()"),
    "penstock_kv_blend_recomputed_tokens_total": ("tests/e2e/blend_test.cc", "blend_recomputed_tokens()"),
    "penstock_kv_blend_fallback_tokens_total": ("tests/e2e/blend_test.cc", "blend_fallback_tokens()"),
    "penstock_kv_blend_filled_tokens_total": ("tests/e2e/blend_test.cc", "blend_filled_tokens()"),
    "penstock_kv_selectable_tokens_total": ("tests/e2e/selection_test.cc", "selectable_tokens()"),
    "penstock_draft_tokens_accepted_total": ("tests/e2e/exact_test.cc", "draft_tokens_accepted()"),
    **{name: ("tests/e2e/expert_memory_test.cc", name) for name in (
        *(f"penstock_expert_{what}_total" for what in ("hits", "misses", "read_bytes", "read_errors", "wait_seconds")),
        *(f"penstock_expert_{what}_bytes" for what in ("capacity", "resident", "file")))},
    **{f"penstock_kv_file_{name}": ("tests/e2e/kv_file_test.cc", f"penstock_kv_file_{name}") for name in (
        "hits_total", "misses_total", "read_bytes_total", "dropped_bytes_total", "capacity_bytes", "resident_bytes", "bytes")},
    "penstock_kv_blocks_quarantined": ("tests/kvstore/handoff/kv_receiver_test.cc", "quarantined_blocks"),
    "penstock_kv_gpu_detours_total": ("tests/e2e/gpu/gpu_test.cc", "penstock_kv_gpu_detours_total"),
    "penstock_keys_last_reload_successful": ("tests/router/request/key_ring_test.cc", "last_reload_successful"),
    **{f"penstock_kv_event_{name}": ("tests/worker/events/kv_event_publisher_test.cc", f"metrics_.{needle}") for name, needle in (
        ("subscribers", "subscribers"), ("replays_total", "replays"), ("batches_dropped_total", "dropped"))},
    **{f"penstock_router_scale_{name}": ("tests/router/scaling/scale_keeper_test.cc", f"metrics_.{needle}") for name, needle in (
        ("replicas", "prefill.replicas"), ("work_workers", "prefill.work"), ("reason", "prefill.reasons"), ("changes_total", "prefill.ups"),
        ("leader", "leads"))},
    "penstock_router_scale_api_errors_total": ("tests/router/kubernetes/kube_scaler_test.cc", "metrics_.lease_errors"),
    "penstock_wire_refused_total": ("tests/worker/runtime/wire_metrics_test.cc", "penstock_wire_refused_total"),
    **dict.fromkeys(["penstock_trace_spans_exported_total", "penstock_trace_spans_dropped_total"], ("tests/router/trace/span_exporter_test.cc", "metrics_.not_taken")),
    "penstock_router_index_gaps_total": ("tests/router/placement/prefix_view_test.cc", "figures().gaps"),
    "penstock_router_index_missing_blocks_total": ("tests/router/placement/prefix_view_test.cc", "figures().missing"),
    "penstock_router_index_dropped_blocks_total": ("tests/router/index/prefix_index_test.cc", "dropped()"),
}


class Watch:
    """Which families have had other values than at the start, at any scrape."""

    def __init__(self, servers):
        self.servers = servers
        self.first = {server.name: samples(scrape(server)) for server in servers}
        self.moved, self.failures, self.stopping = set(), [], False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopping:
            for server in self.servers:
                try:
                    self.compare(self.first[server.name], samples(scrape(server)))
                except OSError as error:  # A machine with much to do answers the next scrape.
                    self.failures.append(f"{server.name}: {error}")

    def compare(self, first, now):
        self.moved |= {family(sample) for sample, value in now.items() if value != first.get(sample)}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.stopping = True
        self.thread.join()


class Moving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(router_flags=["--admin_listen=127.0.0.1:0"])
        cls.addClassCleanup(cls.cluster.stop)
        cls.admin = re.search(r"^admin=(\S+)", cls.cluster.router.ready.read_text(), re.M).group(1)

    def operate(self, *arguments):
        done = self.cluster.cli("admin", *arguments, "--endpoint", self.admin)
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_moves(self, watch, *names):
        try:
            eventually(lambda: set(names) <= watch.moved, 180)
        except AssertionError:
            self.fail(f"these did not move: {sorted(set(names) - watch.moved)}; failed scrapes: {watch.failures[-5:]}")

    def test_what_load_moves(self):
        names = [name for name, by in documented().items() if by == "load"]
        self.assertGreater(len(names), 15)
        # Conversations over a few long texts: both prefill workers need them, and read them from each other.
        with Watch(self.cluster.servers()) as watch, Prompts(self.cluster.router, 1200, shared=1100, max_tokens=60) as prompts:
            prompts.add(24)
            self.assert_moves(watch, *names)

    def test_what_operators_move(self):
        with Watch(self.cluster.servers()) as watch, Prompts(self.cluster.router, 20, max_tokens=800) as prompts:
            prompts.add(6)
            worker = self.cluster.worker("decode-0")

            def moved():  # not one that the router heard of first
                eventually(lambda: samples(scrape(worker))["penstock_requests_running"] > 0, what="answers at decode-0")
                self.operate("drain", "decode-0")
                self.operate("resume", "decode-0")
                return samples(scrape(worker))["penstock_sequences_moved_total"] > 0
            eventually(moved, what="an answer that moves")
            self.operate("role", "decode-0", "prefill")
            self.assert_moves(watch, "penstock_worker_role_changes_total", "penstock_worker_role")
        self.operate("role", "decode-0", "decode")

    def test_a_worker_that_says_nothing(self):
        worker = self.cluster.worker("decode-1")
        with Watch([self.cluster.router]) as watch:
            worker.process.send_signal(signal.SIGSTOP)
            try:
                self.assert_moves(watch, "penstock_router_index_stale_workers")
            finally:
                worker.process.send_signal(signal.SIGCONT)

    def test_each_fault_is_made_by_some_test(self):
        faults = {name for name, by in documented().items() if by == "trouble"}
        here = {"penstock_sequences_moved_total", "penstock_worker_role_changes_total", "penstock_router_index_stale_workers"}
        self.assertEqual(faults, set(ELSEWHERE) | set(OF_UNITS) | here)
        for name, (path, needle) in {**{name: (path, name) for name, path in ELSEWHERE.items()}, **OF_UNITS}.items():
            self.assertIn(needle, (ROOT / path).read_text(), path)


if __name__ == "__main__":
    unittest.main()
