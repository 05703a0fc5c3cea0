#include "cli/operate/kv_worker.h"

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

#include "base/bytes.h"
#include "base/check.h"
#include "base/rpc/rpc_server.h"
#include "cli/shell/connect.h"
#include "proto/kv_admin.grpc.pb.h"
#include "proto/names.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kKvCallTimeout{10};
// A directory of terabytes is read at the disk's pace.
constexpr std::chrono::hours kLong{24};

template <class Answer, class Call>
absl::StatusOr<Answer> AskWorker(const WorkerTarget& worker, std::chrono::seconds patience,
                                 const Call& call) {
  ASSIGN_OR_RETURN(const auto channel, Connect(worker.endpoint, worker.tls, Called::kProcess));
  const auto stub = v1::KvAdmin::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  Answer answer;
  const grpc::Status status = call(*stub, &context, &answer);
  if (!status.ok()) return Annotate(FromGrpcStatus(status), worker.endpoint);
  return answer;
}

SegmentReport ReportOf(const v1::KvSegment& segment) {
  return {.name = segment.name(),
          .writer = segment.writer(),
          .held = segment.held(),
          .sealed = segment.sealed(),
          .bytes = segment.bytes(),
          .blocks = segment.blocks(),
          .block_bytes = segment.block_bytes(),
          .damaged = segment.damaged(),
          .torn = segment.torn(),
          .model_fingerprint = segment.model_fingerprint(),
          .layout = segment.layout(),
          .codecs = {segment.codecs().begin(), segment.codecs().end()},
          .error = segment.error(),
          .verified = segment.verified(),
          .corrupt = segment.corrupt()};
}

std::string Evictions(const v1::KvTierStats& tier) {
  std::string text;
  for (const auto& [reason, blocks] : tier.evictions()) {
    if (blocks > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", blocks, reason);
  }
  return text.empty() ? "-" : text;
}

std::string NvmeText(const v1::KvNvmeStats& nvme) {
  const char* state =
      nvme.serving() ? (nvme.writing() ? "serving, writing" : "serving") : "not serving";
  return fmt::format(
      "{}: {}, {}; {} segments, {} written for {} admitted (x{:.2f}), {} corrupt, {} torn, "
      "{} + {} errors, index {}\n",
      nvme.directory(), nvme.io(), state, nvme.segments(), FormatBytes(nvme.bytes_written()),
      FormatBytes(nvme.bytes_admitted()), nvme.write_amplification(), nvme.corrupt(), nvme.torn(),
      nvme.read_errors(), nvme.write_errors(), FormatBytes(nvme.index_bytes()));
}

}  // namespace

absl::StatusOr<v1::KvStats> AskKvStats(const WorkerTarget& worker) {
  return AskWorker<v1::KvStats>(
      worker, kKvCallTimeout,
      [](auto& stub, auto* context, auto* answer) { return stub.Stats(context, {}, answer); });
}

absl::StatusOr<StoreReport> AskKvDirectory(const WorkerTarget& worker, bool verify) {
  v1::KvInspectRequest request;
  request.set_verify(verify);
  ASSIGN_OR_RETURN(
      const v1::KvDirectory directory,
      AskWorker<v1::KvDirectory>(worker, kLong, [&](auto& stub, auto* context, auto* answer) {
        return stub.Inspect(context, request, answer);
      }));
  StoreReport report{.directory = directory.directory(), .segments = {}};
  for (const v1::KvSegment& segment : directory.segments()) {
    report.segments.push_back(ReportOf(segment));
  }
  return report;
}

absl::StatusOr<v1::KvFlushed> AskKvFlush(const WorkerTarget& worker) {
  return AskWorker<v1::KvFlushed>(
      worker, kKvCallTimeout,
      [](auto& stub, auto* context, auto* answer) { return stub.Flush(context, {}, answer); });
}

std::string KvStatsText(const v1::KvStats& stats) {
  std::string text =
      fmt::format("{:<7} {:>11} {:>11} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n", "tier", "size",
                  "used", "cached", "hits", "misses", "spills", "restores", "evictions");
  for (const v1::KvTierStats& tier : stats.tiers()) {
    text += fmt::format("{:<7} {:>11} {:>11} {:>10} {:>10} {:>10} {:>10} {:>10}  {}\n",
                        TierName(tier.tier()), FormatBytes(tier.capacity_bytes()),
                        FormatBytes(tier.used_bytes()), tier.blocks(), tier.hits(), tier.misses(),
                        tier.spills(), tier.restores(), Evictions(tier));
  }
  text += fmt::format("blocks of {}; {} swapped out, {} sequences out and {} in so far\n",
                      FormatBytes(stats.block_bytes()), stats.swapped_blocks(), stats.swaps_out(),
                      stats.swaps_in());
  if (stats.has_nvme()) text += NvmeText(stats.nvme());
  return text;
}

std::string JsonOf(const v1::KvStats& stats) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  PENSTOCK_CHECK(google::protobuf::util::MessageToJsonString(stats, &json, options).ok());
  return json;
}

}  // namespace penstock
