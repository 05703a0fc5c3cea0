#!/usr/bin/env python3
"""The only source of the dashboards in this folder. `generate.py` writes them; `generate.py --check` fails if
they differ from what it would write."""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
SELECT = 'job="penstock",namespace=~"$namespace",release=~"$release",instance=~"$instance"'
GOOD_OR_OURS = 'status=~"ok|rejected|server_error"'  # a client's errors and cancellations do not count
TX = 'direction="tx"'


def rate(metric, labels="", window="$__rate_interval"):
    selector = SELECT + ("," + labels if labels else "")
    return f"rate({metric}{{{selector}}}[{window}])"


def gauge(metric, labels=""):
    return f"{metric}{{{SELECT}{',' + labels if labels else ''}}}"


def quantiles(metric, labels="", by=""):
    """One series for each of three quantiles and each value of `by`."""
    groups = "le" + (", " + by if by else "")
    legend = f" {{{{{by}}}}}" if by else ""
    return [(f"histogram_quantile({q}, sum by ({groups}) ({rate(metric + '_bucket', labels)}))", f"p{int(q * 100)}{legend}")
            for q in (0.5, 0.95, 0.99)]


def total(metric, by, labels=""):
    return [(f"sum by ({by}) ({rate(metric, labels)})", " ".join(f"{{{{{name.strip()}}}}}" for name in by.split(",")))]


def busy(role):
    """Each worker exports the series of both roles; it counts in the role that it has now."""
    phase, has = f'phase="{role}"', f'role="{role}"'
    return (f"sum({rate('penstock_iteration_duration_seconds_sum', phase)}) / sum({gauge('penstock_worker_role', has)})", role)


def p95_by_instance(metric, labels=""):
    return [(f"histogram_quantile(0.95, sum by (le, instance) ({rate(metric + '_bucket', labels)}))", "{{instance}}")]


def late(slo, histogram):
    """The share of tokens that missed their target, as the alerts have it."""
    of_slo = f'slo="{slo}"'
    return f"sum({rate('penstock_late_tokens_total', of_slo)}) / sum({rate(histogram + '_count')})"


# Seconds of prefill that the cache saves in each second: tokens that were not computed, at the measured time per computed one.
PREFILL = 'phase="prefill"'
SAVED = (f"sum({rate('penstock_prompt_tokens_cached_total')}) * sum({rate('penstock_iteration_duration_seconds_sum', PREFILL)}) / "
         f"sum({rate('penstock_computed_tokens_total', PREFILL)})")

# A string is a row's title, above the panels that follow.
DASHBOARDS = {
    "overview": ("Penstock overview", [
        "Are the targets met?",
        ("Goodput: requests within the TTFT and TPOT targets", "percentunit", [
            (f"sum({rate('penstock_goodput_requests_total')}) / sum({rate('penstock_requests_total', GOOD_OR_OURS)})", "of requests")]),
        ("Tokens later than their target (the alerts watch 95 %)", "percentunit", [
            (late("ttft", "penstock_time_to_first_token_seconds"), "first tokens"),
            (late("tpot", "penstock_inter_token_latency_seconds"), "tokens after them")]),
        "If not: which stage, which worker, which link?",
        ("Stages until the second token, p95", "s", [
            (f"histogram_quantile(0.95, sum by (le, stage) ({rate('penstock_request_stage_seconds_bucket')}))", "{{stage}}")]),
        ("Prompt tokens waiting, by worker", "short", [(gauge("penstock_request_waiting_tokens"), "{{instance}}")]),
        ("Engine step by worker, p95", "s", p95_by_instance("penstock_iteration_duration_seconds")),
        ("Transfer time that requests wait for, by receiving worker, p95", "s", p95_by_instance("penstock_kv_transfer_exposed_seconds")),
        ("KV bytes/s on the wire, by worker and transport", "Bps", total("penstock_kv_transfer_wire_bytes_total", "instance, direction, transport")),
        ("Handoffs that failed/s, by worker", "reqps", total("penstock_kv_transfers_total", "instance, outcome", 'outcome!~"ok|cancelled"')),
        "What does the cache save?",
        ("Prefill seconds saved per second", "short", [(SAVED, "workers' worth of prefill")]),
        ("Money saved per hour, at $gpu_hour_price for an hour of a prefill worker", "short", [(f"({SAVED}) * $gpu_hour_price", "saved")]),
        "Load",
        ("Workers by role and state", "short", [(f"max by (role, state) ({gauge('penstock_workers')}) > 0", "{{role}} {{state}}")]),
        ("Requests/s by status", "reqps", total("penstock_requests_total", "status")),
        ("Refused requests/s by reason", "reqps", total("penstock_requests_rejected_total", "reason")),
        ("SLO violations/s", "reqps", total("penstock_slo_violations_total", "slo")),
        ("Running requests by process", "short", [(f"sum by (instance) ({gauge('penstock_requests_running')})", "{{instance}}")]),
        ("Time to first token", "s", quantiles("penstock_time_to_first_token_seconds")),
        ("Inter-token latency", "s", quantiles("penstock_inter_token_latency_seconds")),
        ("Tokens/s", "short", [
            (f"sum({rate('penstock_prompt_tokens_total')})", "prompt tokens"),
            (f"sum({rate('penstock_prompt_tokens_cached_total')})", "cached prompt tokens"),
            (f"sum({rate('penstock_output_tokens_total')})", "output tokens")]),
        ("KV usage", "percentunit", [(gauge("penstock_kv_usage_ratio"), "{{instance}} {{tier}}")]),
        ("Migrations/s by reason", "reqps", total("penstock_migrations_total", "reason")),
        ("Healthy workers", "short", [(f"sum({gauge('penstock_worker_healthy')})", "healthy"),
                                      (f"count({gauge('penstock_worker_healthy')})", "all")]),
    ]),
    "edge": ("Penstock clients and the HTTP port", [
        ("Requests/s by endpoint", "reqps", total("penstock_requests_total", "endpoint")),
        ("HTTP responses/s by status code", "reqps", total("penstock_edge_responses_total", "code")),
        ("Requests refused and connections closed/s by limit", "reqps", total("penstock_edge_limit_hits_total", "limit")),
        ("Connections", "short", [(f"sum by (instance, protocol) ({gauge('penstock_edge_connections')})", "{{instance}} {{protocol}}")]),
        ("Client disconnects/s", "reqps", total("penstock_client_disconnects_total", "phase")),
        ("Authentication failures/s", "reqps", total("penstock_auth_failures_total", "reason")),
        ("Queued requests", "short", [(f"sum by (instance) ({gauge('penstock_requests_waiting')})", "{{instance}}")]),
        ("Gateways' requests/s by the endpoint picker's decision", "reqps", total("penstock_picker_requests_total", "outcome")),
        ("Time of the picker's decisions", "s", quantiles("penstock_picker_decision_seconds")),
        ("TTFT that the picker predicts", "s", quantiles("penstock_picker_predicted_ttft_seconds")),
        ("Cached tokens per prompt", "short", quantiles("penstock_request_cached_tokens")),
        ("Time until certificates expire", "s", [
            (f"({gauge('penstock_tls_certificate_expiry_timestamp_seconds')} > 0) - time()", "{{instance}} {{certificate}}")]),
    ]),
    "latency": ("Penstock latency", [
        ("Stages, mean", "s", [(f"sum by (stage) ({rate('penstock_request_stage_seconds_sum')}) / "
                                f"sum by (stage) ({rate('penstock_request_stage_seconds_count')})", "{{stage}}")]),
        ("Stages, p95", "s", [(f"histogram_quantile(0.95, sum by (le, stage) ({rate('penstock_request_stage_seconds_bucket')}))", "{{stage}}")]),
        ("Time to first token", "s", quantiles("penstock_time_to_first_token_seconds")),
        ("Time from placement to the first token, p95", "s", [
            (f"histogram_quantile(0.95, sum by (le) ({rate('penstock_router_predicted_ttft_seconds_bucket')}))", "predicted"),
            (f"histogram_quantile(0.95, sum by (le) ({rate('penstock_router_placed_ttft_seconds_bucket')}))", "measured")]),
        ("TTFT prediction error / measured TTFT", "percentunit", quantiles("penstock_router_ttft_prediction_error_ratio")),
        ("Inter-token latency", "s", quantiles("penstock_inter_token_latency_seconds")),
        ("Time per output token", "s", quantiles("penstock_time_per_output_token_seconds")),
        ("Request duration", "s", quantiles("penstock_request_duration_seconds", 'status="ok"')),
        ("Engine step duration", "s", quantiles("penstock_iteration_duration_seconds", by="phase")),
        ("Tokens per engine step", "short", quantiles("penstock_iteration_tokens", by="phase")),
        ("Tokens/s by tenant", "short", total("penstock_tenant_tokens_total", "tenant, kind")),
        ("Prompt length", "short", quantiles("penstock_request_prompt_tokens")),
        ("Output length", "short", quantiles("penstock_request_output_tokens")),
        ("Migration pauses", "s", quantiles("penstock_migration_gap_seconds")),
    ]),
    "kv": ("Penstock KV and tiers", [
        ("Blocks by tier and state", "short", [(f"sum by (tier, state) ({gauge('penstock_kv_blocks')})", "{{tier}} {{state}}")]),
        ("KV usage by worker", "percentunit", [(gauge("penstock_kv_usage_ratio"), "{{instance}} {{tier}}")]),
        ("Capacity", "bytes", [(f"sum by (tier) ({gauge('penstock_kv_capacity_bytes')})", "{{tier}}")]),
        ("Share of prompt tokens cached", "percentunit", [(f"sum({rate('penstock_prompt_tokens_cached_total')}) / sum({rate('penstock_prompt_tokens_total')})", "cached")]),
        ("Hit rate by tier", "percentunit", [
            (f"sum by (tier) ({rate('penstock_kv_cache_hits_total')}) / (sum by (tier) ({rate('penstock_kv_cache_hits_total')}) + "
             f"sum by (tier) ({rate('penstock_kv_cache_misses_total')}))", "{{tier}}")]),
        ("Spilled and restored blocks/s", "short", [
            (f"sum by (tier) ({rate('penstock_kv_spills_total')})", "into {{tier}}"),
            (f"sum by (tier) ({rate('penstock_kv_restores_total')})", "out of {{tier}}")]),
        ("Evicted blocks/s", "short", total("penstock_kv_evictions_total", "tier, reason")),
        ("Restore duration", "s", quantiles("penstock_kv_restore_seconds", by="tier")),
        ("Swaps/s", "short", [(f"sum({rate('penstock_kv_swaps_out_total')})", "out"),
                                                    (f"sum({rate('penstock_kv_swaps_in_total')})", "in")]),
        ("NVMe: bytes written/s", "Bps", [(f"sum by (instance) ({rate('penstock_kv_nvme_written_bytes_total')})", "{{instance}}")]),
        ("NVMe: errors/s", "short", [
            (f"sum({rate(f'penstock_kv_nvme_{what}_total')})", what.replace("_", " "))
            for what in ("corrupt", "torn", "read_errors", "write_errors", "late_reads")]),
        ("KV pages in a file: share found in memory", "percentunit", [
            (f"sum by (instance) ({rate('penstock_kv_file_hits_total')}) / (sum by (instance) ({rate('penstock_kv_file_hits_total')}) + "
             f"sum by (instance) ({rate('penstock_kv_file_misses_total')}))", "{{instance}}")]),
        ("KV pages in a file: bytes read/s", "Bps", [(rate("penstock_kv_file_read_bytes_total"), "{{instance}}")]),
        ("Experts on a disk: share found in memory", "percentunit", [
            (f"sum by (instance) ({rate('penstock_expert_hits_total')}) / (sum by (instance) ({rate('penstock_expert_hits_total')}) + "
             f"sum by (instance) ({rate('penstock_expert_misses_total')}))", "{{instance}}")]),
        ("Experts on a disk: share of time waited", "percentunit", [(rate("penstock_expert_wait_seconds_total"), "{{instance}}")]),
        ("Blocks in the prefix index", "short", [(gauge("penstock_router_index_blocks"), "{{instance}}")]),
        ("Prefix index: errors/s", "short", [
            *((f"sum({rate(f'penstock_router_index_{what}_total')})", what.replace("_", " ")) for what in ("gaps", "missing_blocks", "dropped_blocks")),
            (f"sum({gauge('penstock_router_index_stale_workers')})", "stale workers")]),
        ("Computed tokens/s", "short", total("penstock_computed_tokens_total", "phase")),
        ("Recomputed prompt tokens/s", "short", [(f"sum({rate('penstock_prompt_tokens_recomputed_total')})", "after failures")]),
    ]),
    "transfers": ("Penstock transfers and roles", [
        ("Handoffs/s by outcome", "reqps", total("penstock_kv_transfers_total", "direction, outcome")),
        ("KV bytes/s by transport", "Bps", total("penstock_kv_transfer_bytes_total", "transport")),
        ("KV bytes/s before and after encoding", "Bps", [
            (f"sum({rate('penstock_kv_transfer_bytes_total', TX)})", "before"),
            (f"sum({rate('penstock_kv_transfer_wire_bytes_total', TX)})", "on the wire")]),
        ("Slabs/s by codec", "short", total("penstock_kv_codec_slabs_total", "codec")),
        ("Handoff duration (offer to commit)", "s", quantiles("penstock_kv_transfer_duration_seconds", by="transport")),
        ("Exposed transfer time", "s", quantiles("penstock_kv_transfer_exposed_seconds")),
        ("Time to the first slab", "s", quantiles("penstock_kv_transfer_first_slab_seconds")),
        ("Handoffs in flight", "short", [(gauge("penstock_kv_transfers_inflight"), "{{instance}}")]),
        ("Blocks held by handoffs, by age", "short", [(f"sum by (age) ({gauge('penstock_kv_blocks_held')})", "{{age}}"),
                                                       (f"sum({gauge('penstock_kv_blocks_quarantined')})", "quarantined")]),
        ("Peer reads/s by outcome", "reqps", total("penstock_kv_peer_reads_total", "outcome")),
        ("Peer read duration", "s", quantiles("penstock_kv_peer_read_seconds")),
        ("Bytes/s read from peers", "Bps", total("penstock_kv_peer_bytes_total", "instance")),
        ("Engine utilisation by role", "percentunit", [busy("prefill"), busy("decode")]),
        ("Role load (1 = at SLO capacity)", "short", [
            (f"max by (role) ({gauge('penstock_router_role_load')})", "{{role}}")]),
        ("Requests waiting", "short", [(gauge("penstock_requests_waiting"), "{{instance}}")]),
        ("Prompt tokens waiting", "short", [(gauge("penstock_request_waiting_tokens"), "{{instance}}")]),
        ("Time since the last engine step", "s", [(f"time() - {gauge('penstock_scheduler_last_progress_timestamp_seconds')}", "{{instance}}")]),
        ("Resident memory", "bytes", [(gauge("process_resident_memory_bytes"), "{{instance}}")]),
        ("CPU cores used", "short", [(rate("process_cpu_seconds_total"), "{{instance}}")]),
        ("Open files", "percentunit", [(f"{gauge('process_open_fds')} / {gauge('process_max_fds')}", "{{instance}}")]),
    ]),
}


def traced(expr):
    """Whether the query is over a histogram with exemplars, which are shown as points that lead to a trace."""
    return any(f"penstock_{name}_seconds_bucket" in expr for name in ("time_to_first_token", "inter_token_latency", "request_duration"))


def panel(title, unit, queries):
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend} | ({"exemplar": True} if traced(expr) else {})
                    for i, (expr, legend) in enumerate(queries)],
    }


def arranged(specs):
    """Panels in two columns under the titles of their rows."""
    panels, y, left = [], 0, True
    for number, spec in enumerate(specs):
        if isinstance(spec, str):
            y += 0 if left else 8
            place = {"type": "row", "title": spec, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
            y, left = y + 1, True
        else:
            place = panel(*spec) | {"gridPos": {"x": 0 if left else 12, "y": y, "w": 12, "h": 8}}
            y, left = y + (0 if left else 8), not left
        panels.append({"id": number + 1} | place)
    return panels


def choice(name, of="penstock_build_info"):
    """A variable with the values of a label; a series without the label, as on hosts without Kubernetes, is always shown."""
    return {"name": name, "type": "query", "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": f'label_values({of}{{job="penstock"}}, {name})', "refresh": 2}


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
            choice("namespace"), choice("release"), choice("instance"),
            {"name": "gpu_hour_price", "type": "textbox", "query": "2.5", "current": {"text": "2.5", "value": "2.5"}},
        ]},
        "panels": arranged(panels),
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
