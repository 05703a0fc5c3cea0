#include "lab/replay/cache_trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace penstock {
namespace {

BlockId IdOf(uint64_t number) {
  BlockId id;
  std::memcpy(id.bytes.data(), &number, sizeof(number));
  return id;
}

// True if the last block is not full.
absl::StatusOr<bool> HasPartialTail(int64_t tokens, size_t blocks, int64_t block_tokens) {
  const auto full = static_cast<size_t>(std::max<int64_t>(tokens, 0) / block_tokens);
  const bool rest = tokens % block_tokens > 0;
  if (tokens >= 0 && blocks == full) return false;
  if (tokens >= 0 && rest && blocks == full + 1) return true;
  return InvalidArgument(
      "hash_ids has {} ids, but input_length is {}, which is {} blocks of {} tokens; name the size "
      "of the trace's blocks by --block-tokens",
      blocks, tokens, full + (rest ? 1 : 0), block_tokens);
}

absl::StatusOr<CacheRequest> ParseRequest(const std::string& line, int64_t block_tokens) {
  const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object() || !row.contains("timestamp") || !row.contains("input_length") ||
      !row.contains("hash_ids") || !row["timestamp"].is_number() ||
      !row["input_length"].is_number_integer() || !row["hash_ids"].is_array()) {
    return InvalidArgument("not an object with timestamp, input_length and hash_ids");
  }
  CacheRequest request{.at_s = row["timestamp"].get<double>() / 1e3, .blocks = {}};
  ASSIGN_OR_RETURN(request.partial_tail, HasPartialTail(row["input_length"].get<int64_t>(),
                                                        row["hash_ids"].size(), block_tokens));
  for (const auto& id : row["hash_ids"]) {
    if (!id.is_number_unsigned()) return InvalidArgument("hash_ids holds {}", id.dump());
    request.blocks.push_back(IdOf(id.get<uint64_t>()));
  }
  return request;
}

// Draws the generated workload. std::*_distribution differ between libraries, so none is used.
class Workload {
 public:
  explicit Workload(int requests) : requests_(requests) {}

  CacheTrace Make() {
    CacheTrace trace{.name = "generated", .requests = {}};
    std::vector<std::vector<BlockId>> chats;
    double now_s = 0;
    for (int i = 0; i < requests_; ++i) {
      now_s += -std::log(1 - Uniform()) * 0.3;
      std::vector<BlockId> blocks = NextPrompt(&chats);
      trace.requests.push_back({.at_s = now_s, .partial_tail = false, .blocks = blocks});
      if (Uniform() < 0.6) chats.push_back(std::move(blocks));
    }
    return trace;
  }

 private:
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  std::vector<BlockId> NextPrompt(std::vector<std::vector<BlockId>>* chats) {
    std::vector<BlockId> blocks;
    const double kind = Uniform();
    if (kind < 0.35 && !chats->empty()) {  // The next turn of a chat, more likely of a late one.
      const double back = std::pow(Uniform(), 3) * static_cast<double>(chats->size());
      const auto chosen = chats->end() - 1 - static_cast<std::ptrdiff_t>(back);
      blocks = std::move(*chosen);
      chats->erase(chosen);
    } else {  // One of eight agents with 12 shared blocks each, or a chat with one.
      const uint64_t agent = kind < 0.6 ? 1 + random_() % 8 : 0;
      const uint64_t shared = agent > 0 ? 12 : 1;
      for (uint64_t i = 0; i < shared; ++i) blocks.push_back(IdOf(agent << 8 | i));
    }
    const auto more = 1 + static_cast<int>(-std::log(1 - Uniform()) * 12);
    for (int i = 0; i < more; ++i) blocks.push_back(IdOf(uint64_t{1} << 32 | next_++));
    return blocks;
  }

  const int requests_;
  std::mt19937_64 random_{1};
  uint64_t next_ = 0;
};

}  // namespace

std::span<const BlockId> BlocksToKeep(const CacheRequest& request, bool keeps_partial) {
  const std::span<const BlockId> ids(request.blocks);
  const bool cut = request.partial_tail && !keeps_partial && !ids.empty();
  return cut ? ids.first(ids.size() - 1) : ids;
}

absl::StatusOr<CacheTrace> LoadCacheTrace(const std::string& path, int64_t block_tokens) {
  std::ifstream file(path);
  if (!file) return NotFound("trace {} cannot be read", path);
  CacheTrace trace{.name = std::filesystem::path(path).stem(), .requests = {}};
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    auto request = ParseRequest(line, block_tokens);
    if (!request.ok()) {
      return Annotate(request.status(), fmt::format("trace {}, line {}", path, number));
    }
    trace.requests.push_back(*std::move(request));
  }
  if (trace.requests.empty()) return InvalidArgument("trace {} has no requests", path);
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.at_s < b.at_s; });
  return trace;
}

CacheTrace MakeCacheTrace(int requests) { return Workload(requests).Make(); }

}  // namespace penstock
