#include "worker/runtime/worker_metrics.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

namespace penstock {
namespace {

// Gauges under vLLM's names, which existing schedulers read.
struct VllmGauges {
  explicit VllmGauges(MetricsRegistry& registry, const std::string& model)
      : running(Gauge(registry, model, "num_requests_running", "Requests that are computed.")),
        waiting(Gauge(registry, model, "num_requests_waiting", "Requests that wait.")),
        usage(
            Gauge(registry, model, "kv_cache_usage_perc", "Used share of the KV blocks, 0 to 1.")) {
    // Schedulers read the list of LoRA adapters, which is empty here.
    registry
        .Gauge("vllm:lora_requests_info", "LoRA adapters.",
               {{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}})
        .Set(1);
  }
  static prometheus::Gauge& Gauge(MetricsRegistry& registry, const std::string& model,
                                  const std::string& name, const std::string& help) {
    return registry.Gauge("vllm:" + name, help, {{"model_name", model}, {"engine", "0"}});
  }

  prometheus::Gauge& running;
  prometheus::Gauge& waiting;
  prometheus::Gauge& usage;
};

// The guesses of one drafter.
struct GuessCounters {
  void Show(uint64_t checked_now, uint64_t right_now) {
    RaiseTo(checked, checked_now);
    RaiseTo(right, right_now);
  }

  prometheus::Counter& checked;
  prometheus::Counter& right;
};

struct WorkerMetrics {
  WorkerMetrics(MetricsRegistry& registry, const WorkerFacts& given)
      : facts(given),
        blocks_used(Blocks(registry, "used")),
        blocks_reserved(Blocks(registry, "reserved")),
        blocks_cached(Blocks(registry, "cached")),
        blocks_free(Blocks(registry, "free")),
        rows_used(Rows(registry, "used")),
        rows_reserved(Rows(registry, "reserved")),
        rows_free(Rows(registry, "free")),
        usage(registry.Gauge("penstock_kv_usage_ratio",
                             "Used or reserved share of the KV blocks, 0 to 1.",
                             {{"tier", "device"}})),
        capacity_bytes(registry.Gauge("penstock_kv_capacity_bytes", "Size of a tier of KV blocks.",
                                      {{"tier", "device"}})),
        running(registry.Gauge("penstock_requests_running", "Requests that are being computed.")),
        waiting(registry.Gauge("penstock_requests_waiting", "Requests that wait to be computed.")),
        waiting_tokens(registry.Gauge("penstock_request_waiting_tokens",
                                      "Prompt tokens that are still to be computed.")),
        handoffs(registry.Gauge("penstock_kv_transfers_inflight", "Handoffs that are open.")),
        healthy(
            registry.Gauge("penstock_worker_healthy",
                           "1 while the engine makes progress; 0 after --stall_ms without any.")),
        progress_time(registry.Gauge(
            "penstock_scheduler_last_progress_timestamp_seconds",
            "Time of the last observed progress of the engine, idle turns included.")),
        steps(registry.Counter("penstock_scheduler_steps_total",
                               "Engine steps: forward progress while requests run.")),
        moved(registry.Counter("penstock_sequences_moved_total",
                               "Running choices that were moved to other decode workers.")),
        evicted(registry.Counter("penstock_kv_evicted_tokens_total",
                                 "Prompt tokens whose KV was dropped, as kv_policy said.")),
        decode_evicted(registry.Counter("penstock_kv_decode_evicted_tokens_total",
                                        "Tokens whose KV was dropped while decoding, as kv_policy "
                                        "said.")),
        compactions(registry.Counter("penstock_kv_compactions_total",
                                     "Compactions of sequences that dropped those tokens.")),
        selected(registry.Counter("penstock_kv_selected_tokens_total",
                                  "Tokens that answers attended to in each layer that selects, "
                                  "where they did not attend to all.")),
        selectable(registry.Counter("penstock_kv_selectable_tokens_total",
                                    "All tokens that those were selected from.")),
        blend_reused(registry.Counter("penstock_kv_blend_reused_tokens_total",
                                      "Prompt tokens whose KV was re-used at another position, or "
                                      "behind other tokens, as kv_policy said.")),
        blend_recomputed(registry.Counter("penstock_kv_blend_recomputed_tokens_total",
                                          "Those of them that were computed again.")),
        blend_fallback(registry.Counter(
            "penstock_kv_blend_fallback_tokens_total",
            "Those of them in parts that were computed in full, since they deviated too far.")),
        blend_filled(registry.Counter("penstock_kv_blend_filled_tokens_total",
                                      "Tokens that were computed to have the KV of re-usable parts "
                                      "of prompts, since it was not cached.")),
        ngram(Guesses(registry, "ngram")),
        draft_model(Guesses(registry, "model")),
        mtp(Guesses(registry, "mtp")),
        vllm(registry, given.model_name) {}

  static prometheus::Gauge& Blocks(MetricsRegistry& registry, const std::string& state) {
    return registry.Gauge("penstock_kv_blocks", "Blocks of a tier, by state.",
                          {{"tier", "device"}, {"state", state}});
  }

  static prometheus::Gauge& Rows(MetricsRegistry& registry, const std::string& state) {
    return registry.Gauge("penstock_kv_rows",
                          "Rows for the layers with a window of a model whose other layers see all "
                          "tokens, by state; 0 where each block has memory for all layers.",
                          {{"state", state}});
  }

  static GuessCounters Guesses(MetricsRegistry& registry, const std::string& drafter) {
    return {.checked = registry.Counter("penstock_draft_tokens_total",
                                        "Guesses of speculation that a decode step checked.",
                                        {{"drafter", drafter}}),
            .right = registry.Counter("penstock_draft_tokens_accepted_total",
                                      "Guesses of speculation that were right.",
                                      {{"drafter", drafter}})};
  }

  void Show(const v1::WorkerState& state) {
    const auto used = static_cast<double>(state.kv_blocks_used());
    const auto reserved = static_cast<double>(state.kv_blocks_reserved());
    const auto cached = static_cast<double>(state.kv_blocks_cached());
    const auto total = static_cast<double>(state.kv_blocks_total());
    blocks_used.Set(used);
    blocks_reserved.Set(reserved);
    blocks_cached.Set(cached);
    blocks_free.Set(total - used - reserved - cached);
    const double ratio = (used + reserved) / std::max(1.0, total);
    usage.Set(ratio);
    capacity_bytes.Set(total * static_cast<double>(facts.block_bytes));
    rows_used.Set(static_cast<double>(state.kv_rows_used()));
    rows_reserved.Set(static_cast<double>(state.kv_rows_reserved() - state.kv_rows_used()));
    rows_free.Set(static_cast<double>(state.kv_rows_total() - state.kv_rows_reserved()));
    running.Set(state.running());
    waiting.Set(state.waiting());
    waiting_tokens.Set(static_cast<double>(state.waiting_tokens()));
    handoffs.Set(state.handoffs());
    healthy.Set(state.phase() == v1::WorkerState::UNHEALTHY ? 0 : 1);
    RaiseTo(steps, state.steps());
    RaiseTo(moved, state.sequences_moved());
    RaiseTo(evicted, state.evicted_tokens());
    RaiseTo(decode_evicted, state.decode_evicted_tokens());
    RaiseTo(compactions, state.compactions());
    RaiseTo(selected, state.selected_tokens());
    RaiseTo(selectable, state.selectable_tokens());
    RaiseTo(blend_reused, state.blend_reused_tokens());
    RaiseTo(blend_recomputed, state.blend_recomputed_tokens());
    RaiseTo(blend_fallback, state.blend_fallback_tokens());
    RaiseTo(blend_filled, state.blend_filled_tokens());
    draft_model.Show(state.draft_model_tokens(), state.draft_model_tokens_accepted());
    mtp.Show(state.mtp_tokens(), state.mtp_tokens_accepted());
    ngram.Show(state.draft_tokens() - state.draft_model_tokens() - state.mtp_tokens(),
               state.draft_tokens_accepted() - state.draft_model_tokens_accepted() -
                   state.mtp_tokens_accepted());
    ShowProgress();
    vllm.running.Set(state.running());
    vllm.waiting.Set(state.waiting());
    vllm.usage.Set(ratio);
  }

  // A beat has no time of its own, so it gets the time of the scrape that first sees it.
  void ShowProgress() {
    const uint64_t beats = facts.beats();
    if (beats == seen_beats) return;
    seen_beats = beats;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    progress_time.Set(std::chrono::duration<double>(now).count());
  }

  const WorkerFacts facts;
  uint64_t seen_beats = 0;
  prometheus::Gauge& blocks_used;
  prometheus::Gauge& blocks_reserved;
  prometheus::Gauge& blocks_cached;
  prometheus::Gauge& blocks_free;
  prometheus::Gauge& rows_used;
  prometheus::Gauge& rows_reserved;
  prometheus::Gauge& rows_free;
  prometheus::Gauge& usage;
  prometheus::Gauge& capacity_bytes;
  prometheus::Gauge& running;
  prometheus::Gauge& waiting;
  prometheus::Gauge& waiting_tokens;
  prometheus::Gauge& handoffs;
  prometheus::Gauge& healthy;
  prometheus::Gauge& progress_time;
  prometheus::Counter& steps;
  prometheus::Counter& moved;
  prometheus::Counter& evicted;
  prometheus::Counter& decode_evicted;
  prometheus::Counter& compactions;
  prometheus::Counter& selected;
  prometheus::Counter& selectable;
  prometheus::Counter& blend_reused;
  prometheus::Counter& blend_recomputed;
  prometheus::Counter& blend_fallback;
  prometheus::Counter& blend_filled;
  GuessCounters ngram;
  GuessCounters draft_model;
  GuessCounters mtp;
  VllmGauges vllm;
};

}  // namespace

void AddWorkerMetrics(MetricsRegistry& registry, const WorkerFacts& facts,
                      std::function<v1::WorkerState()> state) {
  auto metrics = std::make_shared<WorkerMetrics>(registry, facts);
  registry
      .Gauge("vllm:cache_config_info", "Geometry of the KV pool.",
             {{"model_name", facts.model_name},
              {"engine", "0"},
              {"block_size", std::to_string(facts.block_tokens)},
              {"num_gpu_blocks", std::to_string(facts.blocks)}})
      .Set(1);
  registry.BeforeScrape([metrics, state = std::move(state)] { metrics->Show(state()); });
}

}  // namespace penstock
