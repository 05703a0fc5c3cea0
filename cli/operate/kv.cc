#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/lifecycle.h"
#include "cli/operate/commands.h"
#include "cli/operate/kv_worker.h"
#include "cli/shell/progress.h"
#include "kvstore/tiers/store_admin.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const SegmentReport& segment) {
  Json json = {{"name", segment.name},
               {"writer", segment.writer},
               {"held", segment.held},
               {"sealed", segment.sealed},
               {"bytes", segment.bytes},
               {"blocks", segment.blocks},
               {"damaged", segment.damaged},
               {"torn", segment.torn},
               {"model_fingerprint", fmt::format("{:016x}", segment.model_fingerprint)},
               {"layout", segment.layout},
               {"codecs", segment.codecs}};
  if (!segment.error.empty()) json["error"] = segment.error;
  return json;
}

Json SumToJson(const SegmentReport& sum, size_t segments) {
  return {{"segments", segments},   {"bytes", sum.bytes},  {"blocks", sum.blocks},
          {"damaged", sum.damaged}, {"torn", sum.torn},    {"verified", sum.verified},
          {"corrupt", sum.corrupt}, {"codecs", sum.codecs}};
}

std::string State(const SegmentReport& segment) {
  if (!segment.error.empty()) return segment.error;
  std::string state = segment.sealed ? "sealed" : "open";
  for (const auto& [codec, blocks] : segment.codecs) {
    if (codec != "raw") state += fmt::format(", {} as {}", blocks, codec);
  }
  if (segment.held) state += ", in use";
  if (segment.damaged > 0) state += fmt::format(", {} damaged", segment.damaged);
  if (segment.torn > 0) state += fmt::format(", {} torn", segment.torn);
  if (segment.corrupt > 0) state += fmt::format(", {} corrupt", segment.corrupt);
  return state;
}

void PrintSegments(const StoreReport& report) {
  std::string format;
  for (const SegmentReport& segment : report.segments) {
    const std::string own = fmt::format("model {:016x}, {}, {} each", segment.model_fingerprint,
                                        segment.layout, FormatBytes(segment.block_bytes));
    if (segment.error.empty() && own != format) fmt::print("{}\n", own);
    if (segment.error.empty()) format = own;
    fmt::print("  {}  {:>10}  {:>9} blocks  {}\n", segment.name, FormatBytes(segment.bytes),
               segment.blocks, State(segment));
  }
}

void PrintSum(const StoreReport& report, bool verified) {
  const SegmentReport sum = report.Sum();
  fmt::print("{} segments, {}, {} blocks, {} damaged, {} torn", report.segments.size(),
             FormatBytes(sum.bytes), sum.blocks, sum.damaged, sum.torn);
  if (verified) fmt::print(", {} verified, {} corrupt", sum.verified, sum.corrupt);
  fmt::print("\n");
}

int KvFailed(const absl::Status& status) {
  fmt::print(stderr, "penstock kv: {}\n", Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

// A directory, or else the host:port of a worker.
bool IsWorker(const KvOptions& options) {
  return !std::filesystem::is_directory(options.where) && ParseHostPort(options.where).ok();
}

int FlushWorker(const KvOptions& options) {
  const auto flushed = AskKvFlush({options.where, options.tls});
  if (!flushed.ok()) return KvFailed(flushed.status());
  if (options.json) {
    fmt::print("{}\n", Json{{"blocks", flushed->blocks()}}.dump());
  } else {
    fmt::print("flushed {} cached blocks\n", flushed->blocks());
  }
  return 0;
}

int FlushDirectory(const KvOptions& options) {
  const auto report = FlushStore(options.where);
  if (!report.ok()) return KvFailed(report.status());
  if (options.json) {
    fmt::print(
        "{}\n",
        Json{{"segments", report->segments}, {"bytes", report->bytes}, {"held", report->held}}
            .dump());
    return 0;
  }
  fmt::print("{} segments removed, {} free\n", report->segments, FormatBytes(report->bytes));
  if (!report->held.empty()) {
    fmt::print("{} writers are running workers and keep their segments: flush or stop them\n",
               report->held.size());
  }
  return 0;
}

int WorkerStats(const KvOptions& options) {
  const auto stats = AskKvStats({options.where, options.tls});
  if (!stats.ok()) return KvFailed(stats.status());
  fmt::print("{}\n", options.json ? JsonOf(*stats) : KvStatsText(*stats));
  return 0;
}

absl::StatusOr<StoreReport> Read(const KvOptions& options, bool verify) {
  if (IsWorker(options)) return AskKvDirectory({options.where, options.tls}, verify);
  if (!verify) return InspectStore(options.where);
  Progress progress;
  auto report = VerifyStore(options.where, [&](const std::string& name) {
    progress.Status("reading " + name);
    return true;
  });
  progress.Status("");
  return report;
}

}  // namespace

int Run(const KvOptions& options) {
  const bool worker = IsWorker(options);
  if (options.what == "flush") return worker ? FlushWorker(options) : FlushDirectory(options);
  if (options.what == "stats" && worker) return WorkerStats(options);
  const bool verify = options.what == "verify";
  const auto report = Read(options, verify);
  if (!report.ok()) return KvFailed(report.status());
  const SegmentReport sum = report->Sum();
  if (options.json) {
    Json json = SumToJson(sum, report->segments.size());
    json["directory"] = report->directory;
    if (options.what != "stats") {
      for (const SegmentReport& segment : report->segments) {
        json["list"].push_back(ToJson(segment));
      }
    }
    fmt::print("{}\n", json.dump());
  } else {
    if (options.what != "stats") PrintSegments(*report);
    PrintSum(*report, verify);
  }
  return static_cast<int>(sum.corrupt > 0 || sum.damaged > 0 ? ExitCode::kBadData : ExitCode::kOk);
}

}  // namespace penstock
