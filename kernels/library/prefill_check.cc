#include "kernels/library/prefill_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace penstock::cuda::library {
namespace {

// Not a multiple of a tile of rows or of keys; more than two of each.
constexpr int32_t kPromptTokens = 403;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kGroupMax = 8;  // the host computes no more heads
constexpr int32_t kWindow = 120;  // its begin is within a tile
// RMS of the difference relative to the host's result. Weights and results are rounded to bf16,
// which yields 0.003; a wrong tile yields more than 0.05.
constexpr double kPrefillDeviationMax = 0.01;

std::vector<Bf16> RandomValues(int64_t count, uint32_t seed) {
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = ToBf16(static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-30f);
  }
  return values;
}

// A prompt's queries, keys and values, and the result of the host.
class CheckedPrompt {
 public:
  CheckedPrompt(const PrefillModel& model, int32_t window)
      : heads_(kKvHeads * std::min(model.group, kGroupMax)),
        head_dim_(model.head_dim),
        page_(model.page_tokens),
        window_(window),
        queries_(RandomValues(int64_t{kPromptTokens} * width(), 1)),
        pages_(RandomValues(pages() * PageElements(), 2)) {
    // Pages in descending order.
    for (int64_t i = pages(); i-- > 0;) table_.push_back(static_cast<uint32_t>(i));
  }

  int64_t width() const { return int64_t{heads_} * head_dim_; }
  int64_t pages() const { return (kPromptTokens + page_ - 1) / page_; }
  const std::vector<Bf16>& queries() const { return queries_; }
  const std::vector<Bf16>& kv() const { return pages_; }
  const std::vector<uint32_t>& table() const { return table_; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim_)); }
  PrefillShape Shape(int32_t processors) const {
    return {.heads = heads_,
            .head_dim = head_dim_,
            .window = window_,
            .table_stride = pages(),
            .processors = processors};
  }
  // A page has keys of all heads, and then values.
  KvPlanes Planes(std::byte* memory) const {
    const auto plane = static_cast<int32_t>(PageElements());  // in bytes: half of a page
    const int32_t row = 2 * head_dim_;
    KvPlanes planes{.layer = memory,
                    .block_stride = 2 * PageElements(),
                    .keys = {.head_stride = row * page_, .row_bytes = row},
                    .values = {.offset = plane, .head_stride = row * page_, .row_bytes = row},
                    .kv_heads = kKvHeads,
                    .head_dim = head_dim_,
                    .page_log2 = 0};
    while ((1 << planes.page_log2) < page_) ++planes.page_log2;
    return planes;
  }

  // [kPromptTokens][width], in double precision.
  std::vector<double> Attend() const {
    std::vector<double> result;
    result.reserve(queries_.size());
    for (int32_t row = 0; row < kPromptTokens; ++row) {
      for (int32_t head = 0; head < heads_; ++head) AttendRow(row, head, result);
    }
    return result;
  }

 private:
  int64_t PageElements() const { return int64_t{2} * kKvHeads * page_ * head_dim_; }
  // A token's row of keys; its values are half a page behind.
  const Bf16* Key(int32_t token, int32_t kv_head) const {
    const int64_t block = table_[static_cast<size_t>(token / page_)];
    const int64_t row = int64_t{kv_head} * page_ + token % page_;
    return pages_.data() + block * PageElements() + row * head_dim_;
  }
  // Appends one head of one row.
  void AttendRow(int32_t row, int32_t head, std::vector<double>& result) const {
    const int32_t kv_head = head / (heads_ / kKvHeads);
    const Bf16* query = queries_.data() + row * width() + int64_t{head} * head_dim_;
    const int32_t first = window_ > 0 ? std::max(0, row + 1 - window_) : 0;
    std::vector<double> scores;
    for (int32_t token = first; token <= row; ++token) {
      const Bf16* key = Key(token, kv_head);
      double score = 0;
      for (int32_t i = 0; i < head_dim_; ++i) score += double{ToFloat(query[i])} * ToFloat(key[i]);
      scores.push_back(score * scale());
    }
    const double most = *std::ranges::max_element(scores);
    double total = 0;
    std::vector<double> sum(static_cast<size_t>(head_dim_));
    for (int32_t token = first; token <= row; ++token) {
      const double weight = std::exp(scores[static_cast<size_t>(token - first)] - most);
      const Bf16* values = Key(token, kv_head) + PageElements() / 2;
      total += weight;
      for (int32_t i = 0; i < head_dim_; ++i)
        sum[static_cast<size_t>(i)] += weight * ToFloat(values[i]);
    }
    for (const double part : sum) result.push_back(part / total);
  }

  const int32_t heads_, head_dim_, page_, window_;
  const std::vector<Bf16> queries_, pages_;
  std::vector<uint32_t> table_;
};

// The prompt on the GPU.
class DevicePrompt {
 public:
  static absl::StatusOr<DevicePrompt> Create(const CheckedPrompt& prompt, int32_t processors,
                                             void* stream) {
    DevicePrompt device(stream);
    const size_t bytes = prompt.queries().size() * sizeof(Bf16);
    ASSIGN_OR_RETURN(device.queries_, DeviceBuffer::Create(bytes, "a check's queries"));
    ASSIGN_OR_RETURN(device.output_, DeviceBuffer::Create(bytes, "a check's output"));
    ASSIGN_OR_RETURN(device.kv_,
                     DeviceBuffer::Create(prompt.kv().size() * sizeof(Bf16), "a check's pages"));
    ASSIGN_OR_RETURN(device.table_, DeviceBuffer::Create(prompt.table().size() * sizeof(uint32_t),
                                                         "a check's table"));
    // The plan of the whole prompt is the largest.
    const PrefillRows all{.first_row = 0, .rows = kPromptTokens, .position = 0};
    const size_t words = PlanPrefill({&all, 1}, prompt.Shape(processors)).words.size();
    ASSIGN_OR_RETURN(device.plan_, DeviceBuffer::Create(words * sizeof(int32_t), "a check's plan"));
    const auto copy = [&](const DeviceBuffer& to, const void* from) {
      CopyToDevice(to.as<void>(), from, to.bytes(), stream);
    };
    copy(device.queries_, prompt.queries().data());
    copy(device.kv_, prompt.kv().data());
    copy(device.table_, prompt.table().data());
    return device;
  }

  // The results of all rows, which are computed in chunks of `chunk`.
  absl::StatusOr<std::vector<Bf16>> Attend(const CheckedPrompt& prompt, int32_t chunk,
                                           int32_t processors, const PrefillRun& run) const {
    const PrefillShape shape = prompt.Shape(processors);
    FillDevice(output_.as<void>(), 0xff, output_.bytes(), stream_);  // NaN
    for (int32_t at = 0; at < kPromptTokens; at += chunk) {
      const int32_t rows = std::min(chunk, kPromptTokens - at);
      const PrefillRows sequence{.first_row = 0, .rows = rows, .position = at};
      const PrefillPlan plan = PlanPrefill({&sequence, 1}, shape);
      CopyToDevice(plan_.as<void>(), plan.words.data(), plan.words.size() * sizeof(int32_t),
                   stream_);
      run({.queries = queries_.as<Bf16>() + at * prompt.width(),
           .query_stride = prompt.width(),
           .output = output_.as<Bf16>() + at * prompt.width(),
           .output_stride = prompt.width(),
           .rows = rows,
           .kv = prompt.Planes(kv_.as<std::byte>()),
           .tables = table_.as<uint32_t>(),
           .shape = shape,
           .plan = plan_.as<int32_t>(),
           .items = plan.items,
           .scale = prompt.scale()},
          stream_);
      Synchronize(stream_);
    }
    std::vector<Bf16> output(prompt.queries().size());
    CopyToHost(output.data(), output_.as<void>(), output_.bytes(), stream_);
    Synchronize(stream_);
    RETURN_IF_ERROR(TakeStatus("a check of the library's prefill attention"));
    return output;
  }

 private:
  explicit DevicePrompt(void* stream) : stream_(stream) {}

  void* stream_;
  DeviceBuffer queries_, output_, kv_, table_, plan_;
};

double DeviationOf(const std::vector<Bf16>& got, const std::vector<double>& want) {
  double error = 0, reference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double difference = ToFloat(got[i]) - want[i];
    error += difference * difference;
    reference += want[i] * want[i];
  }
  return std::sqrt(error / reference);
}

absl::Status CheckVariant(const PrefillRun& run, const PrefillModel& model, int32_t window,
                          int32_t processors, void* stream) {
  const CheckedPrompt prompt(model, window);
  const auto wrong = [&](std::string_view what) {
    return FailedPrecondition(
        "numerics is fast, and the library's prefill attention of heads of {} {} {}; use "
        "numerics=exact",
        model.head_dim, window > 0 ? "with a sliding window" : "without a window", what);
  };
  ASSIGN_OR_RETURN(const DevicePrompt device, DevicePrompt::Create(prompt, processors, stream));
  ASSIGN_OR_RETURN(const std::vector<Bf16> whole,
                   device.Attend(prompt, kPromptTokens, processors, run));
  const double off = DeviationOf(whole, prompt.Attend());
  if (!(off < kPrefillDeviationMax)) {
    return wrong(fmt::format("is {:.2g} of its size off the CPU's, {} may be rounding", off,
                             kPrefillDeviationMax));
  }
  for (const int32_t chunk : {1, 97, 200}) {
    ASSIGN_OR_RETURN(const std::vector<Bf16> chunks, device.Attend(prompt, chunk, processors, run));
    if (std::memcmp(chunks.data(), whole.data(), whole.size() * sizeof(Bf16)) != 0) {
      return wrong(fmt::format("has other bits in chunks of {} tokens", chunk));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrefillDevice(const DeviceInfo& info) {
  if (!HasPrefill()) {
    return FailedPrecondition(
        "numerics is fast, and this build has no library kernels: run scripts/setup --gpu-headers "
        "before cmake --preset cuda, or use numerics=exact");
  }
  if (info.compute_major == 9 && info.compute_minor == 0) return absl::OkStatus();
  return FailedPrecondition(
      "numerics is fast, and {} has compute capability {}.{}; the library kernels need 9.0 (H100, "
      "H200); use numerics=exact",
      info.name, info.compute_major, info.compute_minor);
}

absl::Status CheckPrefill(const PrefillRun& run, const PrefillModel& model, int32_t processors,
                          void* stream) {
  if (model.full) RETURN_IF_ERROR(CheckVariant(run, model, 0, processors, stream));
  if (!model.window) return absl::OkStatus();
  return CheckVariant(run, model, kWindow, processors, stream);
}

}  // namespace penstock::cuda::library
