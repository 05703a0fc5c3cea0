#include "lab/plan/role_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/bytes.h"
#include "kvstore/cache/kv_split.h"
#include "model/weights/model_shard.h"

namespace penstock {
namespace {

constexpr int32_t kDegrees[] = {1, 2, 4, 8};

absl::Status CheckDegree(const PlanRequest& request, int32_t degree) {
  if (degree > 1 && !request.hardware.gpu) {
    return InvalidArgument("--tensor-parallel={} needs GPUs, and --hardware is {}; use 1", degree,
                           request.hardware.name);
  }
  const DividedHeads heads = DividedHeadsOf(request.model);
  if (heads.count % degree == 0) return absl::OkStatus();
  return InvalidArgument(
      "--tensor-parallel={} does not divide the model's {} {}; set a divisor of that number",
      degree, heads.count, heads.name);
}

// Fills the memory of a role whose degree is set.
absl::Status FitMemory(const PlanRequest& request, RolePlan& role) {
  const Hardware& hardware = request.hardware;
  const int32_t degree = role.worker.degree;
  const auto usable =
      static_cast<uint64_t>(static_cast<double>(hardware.memory_bytes) * request.memory_share);
  const uint64_t taken =
      role.worker.DeviceWeightBytes() + hardware.reserve_bytes + role.worker.cost.angle_bytes;
  const uint64_t stride = role.worker.DeviceLayout().BlockStride();
  const uint64_t asked =
      request.kv_memory_bytes ? *request.kv_memory_bytes / static_cast<uint64_t>(degree) : stride;
  if (usable < taken + asked) {
    return InvalidArgument(
        "{}: {} of its {} may be used, and with tensor_parallel={} the weights ({}) take {}{} of "
        "the fullest device; choose hardware with more memory, or fewer bits for the weights",
        hardware.name, FormatBytes(usable), FormatBytes(hardware.memory_bytes), degree,
        role.worker.cost.weights.form, FormatBytes(taken),
        request.kv_memory_bytes ? fmt::format(" and kv_memory {}", FormatBytes(asked)) : "");
  }
  role.kv_memory_bytes = request.kv_memory_bytes ? asked : usable - taken;
  const KvLayout layout = role.worker.DeviceLayout();
  role.blocks = static_cast<int64_t>(role.kv_memory_bytes / stride);
  if (role.blocks > 0) {
    const KvRoom room = SplitKvMemory(layout, role.kv_memory_bytes, request.model.max_position,
                                      request.step_tokens);
    if (room.rows < room.blocks) role.rows = room.rows;
    role.blocks = room.blocks;
  }
  if (role.blocks >= 1) return absl::OkStatus();
  return InvalidArgument("kv_memory is {}; one block of this model takes {}",
                         FormatBytes(role.kv_memory_bytes), FormatBytes(stride));
}

absl::Status CheckHolds(const RolePlan& role, double tokens, std::string_view what) {
  const auto longest = static_cast<int64_t>(std::ceil(tokens));
  const int64_t blocks = role.worker.cost.layout.BlocksFor(longest);
  if (blocks <= role.blocks) return absl::OkStatus();
  return InvalidArgument(
      "a {} of {} tokens takes {} blocks and a worker has {}: give it more kv_memory, a smaller "
      "--kv-format, or more devices (--tensor-parallel)",
      what, longest, blocks, role.blocks);
}

using CheckRole = std::function<absl::Status(const RolePlan&)>;

absl::StatusOr<RolePlan> TryDegree(const PlanRequest& request, const ModelCost& cost,
                                   int32_t degree, const CheckRole& check) {
  RETURN_IF_ERROR(CheckDegree(request, degree));
  RolePlan role{.worker = {.cost = cost,
                           .hardware = request.hardware,
                           .degree = degree,
                           .chunk_tokens = request.chunk_tokens}};
  RETURN_IF_ERROR(FitMemory(request, role));
  RETURN_IF_ERROR(check(role));
  return role;
}

// The smallest degree that passes. The error is that of the largest one that is possible at all,
// which comes nearest.
absl::StatusOr<RolePlan> Fit(const PlanRequest& request, const ModelCost& cost, int32_t degree,
                             const CheckRole& check) {
  if (degree != 0) return TryDegree(request, cost, degree, check);
  absl::StatusOr<RolePlan> last = Internal("no degree was tried");
  for (const int32_t candidate : kDegrees) {
    if (!CheckDegree(request, candidate).ok()) continue;
    last = TryDegree(request, cost, candidate, check);
    if (last.ok()) break;
  }
  return last;
}

}  // namespace

absl::StatusOr<RolePlan> FitPrefill(const PlanRequest& request, const ModelCost& cost) {
  const double longest = request.traffic.LongestPrompt();
  return Fit(request, cost, request.degrees.prefill,
             [&](const RolePlan& role) { return CheckHolds(role, longest, "prompt"); });
}

absl::StatusOr<RolePlan> FitDecode(const PlanRequest& request, const ModelCost& cost) {
  return Fit(request, cost, request.degrees.decode, [&](const RolePlan& role) {
    RETURN_IF_ERROR(CheckHolds(role, request.traffic.Longest(), "sequence"));
    return ChooseBatch(request, role).status();
  });
}

int64_t SequencesThatFit(const RolePlan& role, int64_t tokens) {
  const KvLayout& layout = role.worker.cost.layout;
  const int64_t by_blocks = role.blocks / layout.BlocksFor(tokens);
  return role.rows == 0 ? by_blocks : std::min(by_blocks, role.rows / layout.RowsAtOnce(tokens, 1));
}

int32_t BatchThatFits(const PlanRequest& request, const RolePlan& role) {
  const auto held = static_cast<int64_t>(std::ceil(request.traffic.Held()));
  const int64_t fit = SequencesThatFit(role, held);
  return static_cast<int32_t>(std::clamp<int64_t>(fit, 1, request.batch_max));
}

absl::StatusOr<BatchChoice> ChooseBatch(const PlanRequest& request, const RolePlan& role) {
  const double context = request.traffic.Context();
  BatchChoice choice{.batch = BatchThatFits(request, role)};
  choice.limit = choice.batch < request.batch_max ? "kv_memory" : "max_batch";
  while (choice.batch > 0 &&
         role.worker.StepSeconds(choice.batch, context) > request.targets.token_s) {
    --choice.batch;
    choice.limit = "the target between tokens";
  }
  if (choice.batch == 0) {
    return InvalidArgument(
        "{} with tensor_parallel={} takes {:.1f} ms a token even for one sequence; the target is "
        "{:.1f} ms",
        request.hardware.name, role.worker.degree, role.worker.StepSeconds(1, context) * 1e3,
        request.targets.token_s * 1e3);
  }
  choice.token_s = role.worker.StepSeconds(choice.batch, context);
  return choice;
}

}  // namespace penstock
