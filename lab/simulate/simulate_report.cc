#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lab/simulate/simulate.h"

namespace penstock {

std::string SimulationJson(const std::vector<SimulateRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SimulateRow& row : rows) {
    nlohmann::ordered_json out;
    out["trace"] = row.trace;
    out["policy"] = row.policy;
    out["workers"] = row.workers;
    if (!row.scaler.empty()) {
      out["scaler"] = row.scaler;
      out["decode_workers"] = row.decode_workers;
    }
    for (const SimFigure& figure : kSimFigures) out[figure.name] = row.result.*figure.field;
    list.push_back(std::move(out));
  }
  nlohmann::ordered_json whole;
  whole["simulate"] = std::move(list);
  return whole.dump(2);
}

namespace {

// The rows of a day: a static fleet has the workers that it begins with.
std::string DayText(const std::vector<SimulateRow>& rows) {
  std::string text =
      fmt::format("{:<13}{:<10}{:>9}{:>7}{:>7}{:>8}{:>8}{:>9}{:>11}{:>11}{:>11}{:>9}{:>7}\n",
                  "trace", "scaler", "begins", "req/s", "hit", "slo", "ttft99", "tpot99",
                  "prefill h", "decode h", "worker h", "changes", "turns");
  for (const SimulateRow& row : rows) {
    const SimResult& r = row.result;
    text += fmt::format(
        "{:<13}{:<10}{:>9}{:>7.2f}{:>7.3f}{:>7.2f}%{:>7.2f}s{:>7.1f}ms{:>11.2f}{:>11.2f}{:>11.2f}"
        "{:>9.0f}{:>7.0f}\n",
        row.trace.substr(0, 12), row.scaler, fmt::format("{}+{}", row.workers, row.decode_workers),
        r.requests_per_s, r.block_hit, 100 * r.slo, r.ttft_p99_s, r.tpot_p99_ms,
        r.prefill_worker_hours, r.decode_worker_hours,
        r.prefill_worker_hours + r.decode_worker_hours, r.scale_changes, r.scale_turns);
  }
  return text;
}

}  // namespace

std::string SimulationText(const std::vector<SimulateRow>& rows) {
  if (!rows.empty() && !rows[0].scaler.empty()) return DayText(rows);
  std::string text = fmt::format("{:<13}{:<17}{:>8}{:>8}{:>7}{:>9}{:>7}{:>8}{:>8}{:>8}{:>9}{:>9}\n",
                                 "trace", "policy", "workers", "req/s", "hit", "busiest", "slo",
                                 "ttft50", "ttft90", "ttft99", "tpot50", "tpot99");
  for (const SimulateRow& row : rows) {
    const SimResult& r = row.result;
    text += fmt::format(
        "{:<13}{:<17}{:>8}{:>8.2f}{:>7.3f}{:>9.3f}{:>6.1f}%{:>7.2f}s{:>7.2f}s{:>7.2f}s{:>7.1f}ms"
        "{:>7.1f}ms\n",
        row.trace.substr(0, 12), row.policy, row.workers, r.requests_per_s, r.block_hit,
        r.busy_over_mean, 100 * r.slo, r.ttft_p50_s, r.ttft_p90_s, r.ttft_p99_s, r.tpot_p50_ms,
        r.tpot_p99_ms);
  }
  return text;
}

}  // namespace penstock
