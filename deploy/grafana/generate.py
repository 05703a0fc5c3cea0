#!/usr/bin/env python3
"""The one source of the dashboards beside it. `generate.py` writes them, `generate.py --check` says
whether they are what it would write."""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
SELECT = 'job="penstock",instance=~"$instance"'
GOOD_OR_OURS = 'status=~"ok|rejected|server_error"'  # what clients ask wrong or give up does not count
TX = 'direction="tx"'


def rate(metric, labels="", window="$__rate_interval"):
    selector = SELECT + ("," + labels if labels else "")
    return f"rate({metric}{{{selector}}}[{window}])"


def gauge(metric, labels=""):
    return f"{metric}{{{SELECT}{',' + labels if labels else ''}}}"


def quantiles(metric, labels="", by=""):
    """One line for each of three quantiles, and of each value of `by`."""
    groups = "le" + (", " + by if by else "")
    legend = f" {{{{{by}}}}}" if by else ""
    return [(f"histogram_quantile({q}, sum by ({groups}) ({rate(metric + '_bucket', labels)}))", f"p{int(q * 100)}{legend}")
            for q in (0.5, 0.95, 0.99)]


def total(metric, by, labels=""):
    return [(f"sum by ({by}) ({rate(metric, labels)})", " ".join(f"{{{{{name.strip()}}}}}" for name in by.split(",")))]


def busy(role):
    """Every worker has the series of both roles, and counts where it has the role now."""
    phase, has = f'phase="{role}"', f'role="{role}"'
    return (f"sum({rate('penstock_iteration_duration_seconds_sum', phase)}) / sum({gauge('penstock_worker_role', has)})", role)


DASHBOARDS = {
    "overview": ("Penstock overview", [
        ("Workers by role and state", "short", [(f"max by (role, state) ({gauge('penstock_workers')}) > 0", "{{role}} {{state}}")]),
        ("Requests a second by status", "reqps", total("penstock_requests_total", "status")),
        ("Refused a second by reason", "reqps", total("penstock_requests_rejected_total", "reason")),
        ("Within the targets for first token and tokens", "percentunit", [
            (f"sum({rate('penstock_goodput_requests_total')}) / sum({rate('penstock_requests_total', GOOD_OR_OURS)})", "of requests")]),
        ("Slower than the target, a second", "reqps", total("penstock_slo_violations_total", "slo")),
        ("Requests open, by process", "short", [(f"sum by (instance) ({gauge('penstock_requests_running')})", "{{instance}}")]),
        ("Time to first token", "s", quantiles("penstock_time_to_first_token_seconds")),
        ("Between tokens", "s", quantiles("penstock_inter_token_latency_seconds")),
        ("Tokens a second", "short", [
            (f"sum({rate('penstock_prompt_tokens_total')})", "prompts"),
            (f"sum({rate('penstock_prompt_tokens_cached_total')})", "of those cached"),
            (f"sum({rate('penstock_output_tokens_total')})", "answers")]),
        ("KV in use", "percentunit", [(gauge("penstock_kv_usage_ratio"), "{{instance}} {{tier}}")]),
        ("Moved to other workers, a second", "reqps", total("penstock_migrations_total", "reason")),
        ("Healthy workers", "short", [(f"sum({gauge('penstock_worker_healthy')})", "healthy"),
                                      (f"count({gauge('penstock_worker_healthy')})", "all")]),
    ]),
    "edge": ("Penstock clients and the HTTP port", [
        ("Requests a second by endpoint", "reqps", total("penstock_requests_total", "endpoint")),
        ("Responses a second by status", "reqps", total("penstock_edge_responses_total", "code")),
        ("Refused and cut off a second by limit", "reqps", total("penstock_edge_limit_hits_total", "limit")),
        ("Connections", "short", [(f"sum by (instance, protocol) ({gauge('penstock_edge_connections')})", "{{instance}} {{protocol}}")]),
        ("Clients that left, a second", "reqps", total("penstock_client_disconnects_total", "phase")),
        ("Keys refused a second", "reqps", total("penstock_auth_failures_total", "reason")),
        ("Requests that no worker has yet", "short", [(f"sum by (instance) ({gauge('penstock_requests_waiting')})", "{{instance}}")]),
        ("Cached tokens of a prompt", "short", quantiles("penstock_request_cached_tokens")),
        ("Certificates end in", "s", [
            (f"({gauge('penstock_tls_certificate_expiry_timestamp_seconds')} > 0) - time()", "{{instance}} {{certificate}}")]),
    ]),
    "latency": ("Penstock latency", [
        ("Stages, mean", "s", [(f"sum by (stage) ({rate('penstock_request_stage_seconds_sum')}) / "
                                f"sum by (stage) ({rate('penstock_request_stage_seconds_count')})", "{{stage}}")]),
        ("Stages, 95th percentile", "s", [(f"histogram_quantile(0.95, sum by (le, stage) ({rate('penstock_request_stage_seconds_bucket')}))", "{{stage}}")]),
        ("Time to first token", "s", quantiles("penstock_time_to_first_token_seconds")),
        ("Time from the plan to the first token, 95th percentile", "s", [
            (f"histogram_quantile(0.95, sum by (le) ({rate('penstock_router_predicted_ttft_seconds_bucket')}))", "predicted"),
            (f"histogram_quantile(0.95, sum by (le) ({rate('penstock_router_placed_ttft_seconds_bucket')}))", "real")]),
        ("Prediction's error by the real time", "percentunit", quantiles("penstock_router_ttft_prediction_error_ratio")),
        ("Between tokens", "s", quantiles("penstock_inter_token_latency_seconds")),
        ("Per token, mean of a request", "s", quantiles("penstock_time_per_output_token_seconds")),
        ("Whole requests", "s", quantiles("penstock_request_duration_seconds", 'status="ok"')),
        ("Engine steps", "s", quantiles("penstock_iteration_duration_seconds", by="phase")),
        ("Tokens of an engine step", "short", quantiles("penstock_iteration_tokens", by="phase")),
        ("Prompt length", "short", quantiles("penstock_request_prompt_tokens")),
        ("Answer length", "short", quantiles("penstock_request_output_tokens")),
        ("Pauses of migrations", "s", quantiles("penstock_migration_gap_seconds")),
    ]),
    "kv": ("Penstock KV and tiers", [
        ("Blocks by what holds them", "short", [(f"sum by (tier, state) ({gauge('penstock_kv_blocks')})", "{{tier}} {{state}}")]),
        ("In use, by worker", "percentunit", [(gauge("penstock_kv_usage_ratio"), "{{instance}} {{tier}}")]),
        ("Capacity", "bytes", [(f"sum by (tier) ({gauge('penstock_kv_capacity_bytes')})", "{{tier}}")]),
        ("Prompt tokens cached", "percentunit", [(f"sum({rate('penstock_prompt_tokens_cached_total')}) / sum({rate('penstock_prompt_tokens_total')})", "cached")]),
        ("Hits of what a tier was asked for", "percentunit", [
            (f"sum by (tier) ({rate('penstock_kv_cache_hits_total')}) / (sum by (tier) ({rate('penstock_kv_cache_hits_total')}) + "
             f"sum by (tier) ({rate('penstock_kv_cache_misses_total')}))", "{{tier}}")]),
        ("Spilled and restored blocks a second", "short", [
            (f"sum by (tier) ({rate('penstock_kv_spills_total')})", "into {{tier}}"),
            (f"sum by (tier) ({rate('penstock_kv_restores_total')})", "out of {{tier}}")]),
        ("Evicted blocks a second", "short", total("penstock_kv_evictions_total", "tier, reason")),
        ("Restoring", "s", quantiles("penstock_kv_restore_seconds", by="tier")),
        ("Swapped out and back a second", "short", [(f"sum({rate('penstock_kv_swaps_out_total')})", "out"),
                                                    (f"sum({rate('penstock_kv_swaps_in_total')})", "in")]),
        ("NVMe: bytes written a second", "Bps", [(f"sum by (instance) ({rate('penstock_kv_nvme_written_bytes_total')})", "{{instance}}")]),
        ("NVMe: what went wrong, a second", "short", [
            (f"sum({rate(f'penstock_kv_nvme_{what}_total')})", what.replace("_", " "))
            for what in ("corrupt", "torn", "read_errors", "write_errors", "late_reads")]),
        ("Blocks that routers know of", "short", [(gauge("penstock_router_index_blocks"), "{{instance}}")]),
        ("Prefix index: what went wrong, a second", "short", [
            *((f"sum({rate(f'penstock_router_index_{what}_total')})", what.replace("_", " ")) for what in ("gaps", "missing_blocks", "dropped_blocks")),
            (f"sum({gauge('penstock_router_index_stale_workers')})", "silent workers, now")]),
        ("Computed tokens a second", "short", total("penstock_computed_tokens_total", "phase")),
        ("Computed again a second", "short", [(f"sum({rate('penstock_prompt_tokens_recomputed_total')})", "after failures")]),
    ]),
    "transfers": ("Penstock transfers and roles", [
        ("Handoffs a second by outcome", "reqps", total("penstock_kv_transfers_total", "direction, outcome")),
        ("Bytes a second by lane", "Bps", total("penstock_kv_transfer_bytes_total", "transport")),
        ("Bytes a second of pages, and as they were sent", "Bps", [
            (f"sum({rate('penstock_kv_transfer_bytes_total', TX)})", "pages"),
            (f"sum({rate('penstock_kv_transfer_wire_bytes_total', TX)})", "on the wire")]),
        ("Slabs a second by codec", "short", total("penstock_kv_codec_slabs_total", "codec")),
        ("From offer to commit", "s", quantiles("penstock_kv_transfer_duration_seconds", by="transport")),
        ("Not hidden by compute", "s", quantiles("penstock_kv_transfer_exposed_seconds")),
        ("To the first slab", "s", quantiles("penstock_kv_transfer_first_slab_seconds")),
        ("Handoffs open", "short", [(gauge("penstock_kv_transfers_inflight"), "{{instance}}")]),
        ("Blocks held for a remote, by age", "short", [(f"sum by (age) ({gauge('penstock_kv_blocks_held')})", "{{age}}"),
                                                       (f"sum({gauge('penstock_kv_blocks_quarantined')})", "quarantined")]),
        ("Prefixes read from peers a second by outcome", "reqps", total("penstock_kv_peer_reads_total", "outcome")),
        ("Wait for a peer's prefix", "s", quantiles("penstock_kv_peer_read_seconds")),
        ("Bytes a second from peers", "Bps", total("penstock_kv_peer_bytes_total", "instance")),
        ("Share of time computing, of the workers that have the role", "percentunit", [busy("prefill"), busy("decode")]),
        ("What presses on a role; 1 is what the targets allow", "short", [
            (f"max by (role) ({gauge('penstock_router_role_load')})", "{{role}}")]),
        ("Requests waiting", "short", [(gauge("penstock_requests_waiting"), "{{instance}}")]),
        ("Prompt tokens waiting", "short", [(gauge("penstock_request_waiting_tokens"), "{{instance}}")]),
        ("Since the engine last moved", "s", [(f"time() - {gauge('penstock_scheduler_last_progress_timestamp_seconds')}", "{{instance}}")]),
        ("Resident memory", "bytes", [(gauge("process_resident_memory_bytes"), "{{instance}}")]),
        ("Processor", "short", [(rate("process_cpu_seconds_total"), "{{instance}}")]),
        ("Open files", "percentunit", [(f"{gauge('process_open_fds')} / {gauge('process_max_fds')}", "{{instance}}")]),
    ]),
}


def panel(number, title, unit, queries):
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend}
                    for i, (expr, legend) in enumerate(queries)],
    }


def dashboard(name, title, panels):
    return {
        "uid": f"penstock-{name}",
        "title": title,
        "tags": ["penstock"],
        "schemaVersion": 38,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {"name": "instance", "type": "query", "multi": True, "includeAll": True, "allValue": ".*",
             "current": {"text": "All", "value": "$__all"},
             "datasource": {"type": "prometheus", "uid": "${datasource}"},
             "query": 'label_values(penstock_build_info{job="penstock"}, instance)', "refresh": 2},
        ]},
        "panels": [panel(i, *spec) for i, spec in enumerate(panels)],
    }


def main():
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, (title, panels) in DASHBOARDS.items():
        path = FOLDER / f"{name}.json"
        text = json.dumps(dashboard(name, title, panels), indent=1) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what generate.py writes; run it")


if __name__ == "__main__":
    main()
