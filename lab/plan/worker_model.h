#pragma once

#include <cstdint>

#include "lab/plan/hardware.h"
#include "lab/plan/model_cost.h"

namespace penstock {

// The memory and the times of one worker whose model is spread over `degree` equal devices
// (--tensor_parallel, docs/adr/0025-tensor-parallelism.md). The first device is the fullest and the
// slowest one: it also has the output matrix. Seconds are without queues. Plain data; pure.
struct WorkerModel {
  ModelCost cost;
  Hardware hardware;
  int32_t degree = 1;
  int32_t chunk_tokens = 512;  // of a prefill step

  uint64_t DeviceWeightBytes() const;
  KvLayout DeviceLayout() const;  // pages of one device
  // Of a prompt: the larger of arithmetic and reading the weights once for each chunk, and the
  // exchange.
  double PrefillSeconds(double tokens, double cached) const;
  double PrefillExchangeSeconds(double tokens, double cached) const;  // its part of these
  // Of one decode step.
  double StepSeconds(double batch, double context) const;
  // Of a step with `rows` tokens: twice per layer, each device receives the f32 partial sums of all
  // others, while nothing else runs.
  double ExchangeSeconds(double rows) const;

 private:
  double Chunks(double computed) const;
  double FlopSeconds(double flops) const;
  double ReadSeconds(double bytes) const;
  // Of the first device: of what is divided, and of what is not.
  double StepBytes(double tokens) const;
};

// The time that an exchange takes whatever its size. NCCL's all-gathers of few bytes take 10 to
// 20 us among GPUs of one machine; this is assumed, not measured with Penstock.
inline constexpr double kExchangeLatencySeconds = 15e-6;

}  // namespace penstock
