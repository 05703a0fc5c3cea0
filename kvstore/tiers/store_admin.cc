#include "kvstore/tiers/store_admin.h"

#include <algorithm>
#include <map>
#include <set>

#include "kvstore/codec/codec.h"
#include "kvstore/tiers/disk/store_directory.h"
#include "kvstore/tiers/nvme/segment_load.h"

namespace penstock {
namespace {

std::string InWords(const KvLayout& layout) {
  const std::string row =
      layout.HasLatents()
          ? fmt::format("latents of {} with keys of {}", layout.ValueDim(), layout.latent_rope_dim)
          : fmt::format("{} KV heads of {}", layout.kv_heads, layout.head_dim);
  return fmt::format("{} layers, {}, {} tokens a block, {}", layout.layers, row,
                     layout.block_tokens, KvPageFormatName(layout.format()));
}

struct Listing {
  std::vector<SegmentName> segments;
  std::set<uint32_t> writers;
};

absl::StatusOr<Listing> List(StoreFiles& files, const std::string& directory) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  Listing listing;
  for (const std::string& name : names) {
    if (const auto segment = ParseSegmentFileName(name)) {
      listing.segments.push_back(*segment);
      listing.writers.insert(segment->writer);
    }
    if (const auto writer = ParseLockFileName(name)) listing.writers.insert(*writer);
  }
  std::sort(listing.segments.begin(), listing.segments.end());
  return listing;
}

SegmentReport Report(StoreFiles& files, const std::string& directory, const SegmentName& name,
                     bool verify) {
  SegmentReport report{.name = SegmentFileName(name), .writer = name.writer};
  auto segment = LoadSegment(files, directory + "/" + report.name, /*write=*/false);
  if (!segment.ok()) {
    report.error = Message(segment.status());
    return report;
  }
  report.sealed = segment->sealed;
  report.bytes = segment->bytes;
  report.blocks = segment->records.size();
  report.block_bytes = segment->header.format.layout.BlockStride();
  report.damaged = segment->damaged;
  report.torn = segment->torn;
  report.model_fingerprint = segment->header.format.model_fingerprint;
  report.layout = InWords(segment->header.format.layout);
  for (const BlockRecord& record : segment->records) {
    ++report.codecs[KvCodecName({static_cast<KvCodec>(record.codec)})];
    if (!verify) continue;
    ++(IsPayloadWhole(files, *segment->file, record) ? report.verified : report.corrupt);
  }
  return report;
}

absl::StatusOr<StoreReport> MakeReport(const std::string& directory, bool verify,
                                       const StoreReadProgress& progress) {
  StoreFiles files;
  ASSIGN_OR_RETURN(const Listing listing, List(files, directory));
  // A running worker holds the locks of its numbers.
  std::map<uint32_t, bool> held;
  for (const uint32_t writer : listing.writers) held[writer] = IsHeld(directory, writer);
  StoreReport report{.directory = directory};
  for (const SegmentName& name : listing.segments) {
    if (progress && !progress(SegmentFileName(name))) return Cancelled("reading was cancelled");
    report.segments.push_back(Report(files, directory, name, verify));
    report.segments.back().held = held[name.writer];
  }
  return report;
}

}  // namespace

SegmentReport StoreReport::Sum() const {
  SegmentReport sum;
  for (const SegmentReport& segment : segments) {
    sum.bytes += segment.bytes;
    sum.blocks += segment.blocks;
    sum.damaged += segment.damaged + (segment.error.empty() ? 0 : 1);
    sum.torn += segment.torn;
    for (const auto& [codec, blocks] : segment.codecs) sum.codecs[codec] += blocks;
    sum.verified += segment.verified;
    sum.corrupt += segment.corrupt;
  }
  return sum;
}

absl::StatusOr<StoreReport> InspectStore(const std::string& directory,
                                         const StoreReadProgress& progress) {
  return MakeReport(directory, /*verify=*/false, progress);
}

absl::StatusOr<StoreReport> VerifyStore(const std::string& directory,
                                        const StoreReadProgress& progress) {
  return MakeReport(directory, /*verify=*/true, progress);
}

absl::StatusOr<FlushReport> FlushStore(const std::string& directory) {
  StoreFiles files;
  ASSIGN_OR_RETURN(const Listing listing, List(files, directory));
  FlushReport report;
  for (const uint32_t writer : listing.writers) {
    // The lock is held until the segments are removed, so that no starting worker reads them.
    const auto lock = files.Lock(directory + "/" + LockFileName(writer));
    if (!lock.ok() && lock.status().code() == absl::StatusCode::kUnavailable) {
      report.held.push_back(writer);
      continue;
    }
    RETURN_IF_ERROR(lock.status());
    for (const SegmentName& name : listing.segments) {
      if (name.writer != writer) continue;
      const std::string path = directory + "/" + SegmentFileName(name);
      const auto fd = files.Open(path, /*write=*/false);
      const auto bytes = fd.ok() ? files.Size(fd->get()) : absl::StatusOr<uint64_t>(0);
      RETURN_IF_ERROR(files.Remove(path));
      ++report.segments;
      report.bytes += bytes.ok() ? *bytes : 0;
    }
    RETURN_IF_ERROR(files.Remove(directory + "/" + LockFileName(writer)));
  }
  return report;
}

}  // namespace penstock
