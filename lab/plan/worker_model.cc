#include "lab/plan/worker_model.h"

#include <algorithm>

namespace penstock {

uint64_t WorkerModel::DeviceWeightBytes() const {
  const WeightSizes& weights = cost.weights;
  const double whole = cost.undivided_bytes();
  return static_cast<uint64_t>((weights.layers.bytes - whole + cost.expert_bytes) / degree + whole +
                               weights.head.bytes + weights.tables.bytes + weights.vectors.bytes);
}

KvLayout WorkerModel::DeviceLayout() const {
  KvLayout layout = cost.layout;
  if (!layout.HasLatents()) layout.kv_heads /= degree;  // else every device has whole pages
  return layout;
}

double WorkerModel::StepBytes(double tokens) const {
  const double whole =
      cost.weights.head.bytes + cost.weights.vectors.bytes + cost.undivided_bytes();
  return whole + (cost.StepBytes(tokens) - whole) / degree;
}

double WorkerModel::FlopSeconds(double flops) const {
  return flops / (hardware.flops_per_s * hardware.prefill_efficiency);
}

double WorkerModel::ReadSeconds(double bytes) const {
  return bytes / (hardware.read_bytes_per_s * hardware.decode_efficiency);
}

double WorkerModel::ExchangeSeconds(double rows) const {
  if (degree == 1) return 0;
  const double bytes = (degree - 1) * rows * cost.hidden * sizeof(float);
  const double each = kExchangeLatencySeconds +
                      bytes / (hardware.interconnect_bytes_per_s * hardware.decode_efficiency);
  return 2.0 * cost.layers * each;
}

// Chunks are filled by several prompts, so a part of one counts as such.
double WorkerModel::Chunks(double computed) const { return std::max(1.0, computed / chunk_tokens); }

double WorkerModel::PrefillExchangeSeconds(double tokens, double cached) const {
  const double computed = std::max(0.0, tokens - cached);
  const double chunks = Chunks(computed);
  return chunks * ExchangeSeconds(computed / chunks);
}

double WorkerModel::PrefillSeconds(double tokens, double cached) const {
  const double computed = std::max(0.0, tokens - cached);
  const double chunks = Chunks(computed);
  const double whole = cost.head_flops + computed * cost.undivided_flops();
  const double divided = cost.PrefillFlops(tokens, cached) - whole;
  const double compute = FlopSeconds(whole + divided / degree);
  const double weights = chunks * ReadSeconds(StepBytes(computed / chunks));
  return std::max(compute, weights) + PrefillExchangeSeconds(tokens, cached);
}

double WorkerModel::StepSeconds(double batch, double context) const {
  const double seen = cost.AttendedTokens(context);  // over all layers
  const double kv = batch * seen / cost.layers * cost.kv_bytes_per_token();
  const double whole = batch * (cost.head_flops + cost.undivided_flops());
  const double all =
      batch * (cost.head_flops + cost.flops_per_token + seen * cost.attention_flops_a_pair);
  const double read = ReadSeconds(StepBytes(batch) + (cost.layout.HasLatents() ? kv : kv / degree));
  const double compute = FlopSeconds(whole + (all - whole) / degree);
  return std::max(read, compute) + ExchangeSeconds(batch);
}

}  // namespace penstock
