#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/load/requests.h"

namespace penstock {
namespace {

constexpr uint32_t kMaxTokens = 1 << 24;  // of a prompt or an answer
constexpr std::array<uint32_t, 8> kBlockSizes = {512, 16, 32, 64, 128, 256, 1024, 2048};

struct Row {
  double at_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> blocks;
};

absl::StatusOr<uint32_t> ReadTokens(const nlohmann::json& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end() || !found->is_number_unsigned()) {
    return InvalidArgument("{} must be a number of tokens", name);
  }
  const uint64_t tokens = found->get<uint64_t>();
  if (tokens < 1 || tokens > kMaxTokens) {
    return InvalidArgument("{} is {}; it must be 1 to {}", name, tokens, kMaxTokens);
  }
  return static_cast<uint32_t>(tokens);
}

absl::StatusOr<Row> ParseRow(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("not a JSON object");
  Row row;
  const auto at = json.find("timestamp");
  if (at == json.end() || !at->is_number()) return InvalidArgument("timestamp must be a number");
  row.at_ms = at->get<double>();
  ASSIGN_OR_RETURN(row.input_tokens, ReadTokens(json, "input_length"));
  ASSIGN_OR_RETURN(row.output_tokens, ReadTokens(json, "output_length"));
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array() || ids->empty()) {
    return InvalidArgument("hash_ids must be a list of block numbers");
  }
  for (const auto& id : *ids) {
    if (!id.is_number_unsigned()) return InvalidArgument("hash_ids holds {}", id.dump());
    row.blocks.push_back(id.get<uint64_t>());
  }
  return row;
}

bool Fits(const Row& row, uint32_t block_tokens) {
  return row.blocks.size() == (row.input_tokens + block_tokens - 1) / block_tokens;
}

// The one size with which every row has as many blocks as its length needs.
absl::StatusOr<uint32_t> FindBlockTokens(const std::vector<Row>& rows, const TraceLoad& load) {
  for (const uint32_t size : kBlockSizes) {
    if (load.block_tokens != 0 && size != load.block_tokens) continue;
    if (std::all_of(rows.begin(), rows.end(), [&](const Row& row) { return Fits(row, size); })) {
      return size;
    }
  }
  if (load.block_tokens != 0) {
    return InvalidArgument("trace {}: input_length and hash_ids are not of {}-token blocks",
                           load.path, load.block_tokens);
  }
  return InvalidArgument("trace {}: input_length and hash_ids fit no block size of 16 to 2048",
                         load.path);
}

LoadRequest RequestOf(const Row& row, uint32_t block_tokens) {
  LoadRequest request{.at_s = row.at_ms / 1e3, .prompt = {}, .output_tokens = row.output_tokens};
  uint32_t left = row.input_tokens;
  for (const uint64_t block : row.blocks) {
    const uint32_t tokens = std::min(left, block_tokens);
    request.prompt.push_back({.id = block, .tokens = tokens});
    left -= tokens;
  }
  return request;
}

// Ticks of seconds are how traces are exported, not how requests came.
void Spread(std::vector<Row>& rows) {
  auto first = rows.begin();
  while (first != rows.end()) {
    const double tick_ms = first->at_ms;
    const auto next =
        std::find_if(first, rows.end(), [&](const Row& row) { return row.at_ms != tick_ms; });
    if (next == rows.end()) return;  // how long the last tick was is not known
    const double step_ms = (next->at_ms - tick_ms) / static_cast<double>(next - first);
    for (double at_ms = tick_ms; first != next; ++first, at_ms += step_ms) first->at_ms = at_ms;
  }
}

absl::StatusOr<std::vector<Row>> ReadRows(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("trace {} cannot be read", path);
  std::vector<Row> rows;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    auto row = ParseRow(line);
    if (!row.ok()) return Annotate(row.status(), fmt::format("trace {}, line {}", path, number));
    rows.push_back(*std::move(row));
  }
  if (rows.empty()) return InvalidArgument("trace {} has no requests", path);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.at_ms < b.at_ms; });
  return rows;
}

}  // namespace

absl::StatusOr<LoadedTrace> LoadRequestTrace(const TraceLoad& load) {
  ASSIGN_OR_RETURN(std::vector<Row> rows, ReadRows(load.path));
  ASSIGN_OR_RETURN(const uint32_t block_tokens, FindBlockTokens(rows, load));
  if (load.spread) Spread(rows);
  LoadedTrace trace{.requests = {}, .block_tokens = block_tokens};
  for (const Row& row : rows) {
    if (load.longest != 0 && row.input_tokens + row.output_tokens > load.longest) {
      ++trace.left_out;
      continue;
    }
    trace.requests.push_back(RequestOf(row, block_tokens));
    if (trace.requests.size() == load.requests) break;
  }
  if (trace.requests.empty()) {
    return InvalidArgument("trace {}: no row has at most {} tokens", load.path, load.longest);
  }
  const double start_s = trace.requests.front().at_s;
  for (LoadRequest& request : trace.requests) {
    request.at_s = (request.at_s - start_s) / load.speed;
  }
  return trace;
}

}  // namespace penstock
