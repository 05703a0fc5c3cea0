#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

struct KvEvalOptions {
  std::string model = "models/penstock-tiny";
  std::string text = "models/text/held_out.txt";
  int32_t seeds = 3;
  int32_t windows = 8;              // of text, per seed
  int32_t context = 1024;           // tokens whose KV is compressed
  int32_t continuation = 128;       // tokens scored, and generated, with it
  int32_t document = 256;           // tokens of a document that a blend re-uses
  int32_t prompts = 24;             // per distance of the recall task, over all seeds
  bool codes = false;               // recall prompts are RecallTask::kCode, not kPassKey
  int32_t threads = 0;              // 0: every core
  std::vector<std::string> codecs;  // empty: all
};

// A mean over windows, and the half-width of its 95 % interval.
struct Estimate {
  double mean = 0;
  double half_width = 0;
};

// The effect of one codec on a model. Everything is paired with the exact KV on the same tokens.
struct KvQuality {
  std::string codec;
  double bits_per_element = 0;  // all metadata and protected blocks included
  int64_t resident_bytes = 0;   // of a decode worker, for one window at its peak (ResidentBytes)
  double perplexity = 0;        // of the continuations
  Estimate perplexity_change;   // relative
  Estimate divergence;          // KL(exact || codec) of the next token's distribution, in nats
  double divergence_p99 = 0;
  Estimate top1_agreement;  // share of positions with the same first choice
  // ||K - K'|| / ||K||, and of values; NaN where no KV is rounded to be compared.
  double key_error = 0, value_error = 0;
  std::optional<double> blend_deviation;  // the greatest of a document; of a blend only
  Estimate same_tokens;                   // greedily generated before the first that differs
  double same_generation = 0;             // share of generations that never differ
  std::map<int32_t, double> recall;       // by distance in tokens: share of numbers told whole
  // The same where the question comes behind an eviction, or its tokens select, too; where answers
  // are evicted, the number comes as tokens of the answer. Empty for a codec.
  std::map<int32_t, double> recall_later;
  // Over all prompts, against exact KV on the same ones.
  Estimate recall_change, recall_later_change;
};

struct KvEvalReport {
  KvEvalOptions options;
  double perplexity = 0;             // with exact KV
  int64_t tokens = 0;                // scored
  std::map<int32_t, double> recall;  // with exact KV
  std::vector<KvQuality> rows;
};

// Two phases, as serving does it: prefill of a context, compression of its KV, and the scoring of
// what follows with that. "int4" is plain 4-bit groups, to compare with. NOT_FOUND without a
// calibration beside the model; INVALID_ARGUMENT where the text or the model's context is too
// short.
absl::StatusOr<KvEvalReport> RunKvEval(const KvEvalOptions& options,
                                       const std::function<void(const std::string&)>& progress);

std::string ToJson(const KvEvalReport& report);
std::string ToText(const KvEvalReport& report);
// KL over bits per element and over resident bytes, and the change of recall, as an SVG file.
absl::Status WritePlot(const KvEvalReport& report, const std::string& path);

}  // namespace penstock
