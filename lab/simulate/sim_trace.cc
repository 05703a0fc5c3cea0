#include "lab/simulate/sim_trace.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "lab/simulate/sim_day.h"

namespace penstock {
namespace {

// Numbers blocks from 0 in the order seen.
class Numbers {
 public:
  uint32_t Of(uint64_t id) {
    return numbers_.try_emplace(id, static_cast<uint32_t>(numbers_.size())).first->second;
  }
  uint32_t size() const { return static_cast<uint32_t>(numbers_.size()); }

 private:
  absl::flat_hash_map<uint64_t, uint32_t> numbers_;
};

absl::StatusOr<SimRequest> ParseLine(const std::string& line, size_t number, Numbers& numbers) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto is_number = [&](const char* name) {
    return row.contains(name) && row[name].is_number() && row[name].get<double>() >= 0;
  };
  const bool good = row.is_object() && is_number("timestamp") && is_number("input_length") &&
                    is_number("output_length") && row.contains("hash_ids") &&
                    row["hash_ids"].is_array();
  if (!good) {
    return InvalidArgument(
        "line {} of the trace is not {{\"timestamp\", \"input_length\", \"output_length\", "
        "\"hash_ids\"}} with numbers from 0",
        number);
  }
  SimRequest request{.arrival_s = row["timestamp"].get<double>() / 1000,
                     .prompt_tokens = std::max(1u, row["input_length"].get<uint32_t>()),
                     .answer_tokens = row["output_length"].get<uint32_t>()};
  for (const nlohmann::json& id : row["hash_ids"]) {
    if (!id.is_number_unsigned()) return InvalidArgument("line {}: hash_ids are numbers", number);
    request.blocks.push_back(numbers.Of(id.get<uint64_t>()));
  }
  // Shorter than a block: nobody shares it.
  if (request.blocks.empty()) request.blocks.push_back(numbers.Of(~uint64_t{0} - number));
  return request;
}

void SpreadTicks(std::vector<SimRequest>& requests) {
  std::map<double, uint32_t> counts;
  for (const SimRequest& request : requests) ++counts[request.arrival_s];
  double last_gap = 0;
  std::map<double, double> next;
  for (auto it = counts.begin(); it != counts.end(); ++it) {
    const auto after = std::next(it);
    if (after != counts.end()) last_gap = after->first - it->first;
    next[it->first] = it->first + last_gap;
  }
  std::map<double, uint32_t> seen;
  for (SimRequest& request : requests) {
    const double tick = request.arrival_s;
    request.arrival_s += (next[tick] - tick) * seen[tick]++ / counts[tick];
  }
}

void Multiply(SimTrace& trace, uint32_t copies, uint64_t seed) {
  std::mt19937_64 random(seed);
  const double span = trace.requests.back().arrival_s;
  const std::vector<SimRequest> original = trace.requests;
  for (uint32_t copy = 1; copy < copies; ++copy) {
    const double offset = std::uniform_real_distribution<double>(0, span)(random);
    for (SimRequest request : original) {
      request.arrival_s += offset;
      if (request.arrival_s >= span) request.arrival_s -= span;  // the load stays what it is
      for (uint32_t& block : request.blocks) block += copy * trace.unique_blocks;
      trace.requests.push_back(std::move(request));
    }
  }
  trace.unique_blocks *= copies;
}

void SortByArrival(SimTrace& trace) {
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const SimRequest& a, const SimRequest& b) { return a.arrival_s < b.arrival_s; });
}

}  // namespace

absl::StatusOr<SimTrace> LoadTrace(const std::string& path, uint32_t copies, uint64_t seed) {
  std::ifstream file(path);
  if (!file) return NotFound("cannot open the trace {}", path);
  SimTrace trace;
  Numbers numbers;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    ASSIGN_OR_RETURN(SimRequest request, ParseLine(line, number, numbers));
    trace.requests.push_back(std::move(request));
  }
  if (trace.requests.size() < 2) return InvalidArgument("the trace {} has no two requests", path);
  trace.unique_blocks = numbers.size();
  SortByArrival(trace);
  SpreadTicks(trace.requests);
  SortByArrival(trace);
  if (copies > 1) Multiply(trace, copies, seed);
  SortByArrival(trace);
  return trace;
}

SimTrace MakeTrace(const SyntheticOptions& options) {
  std::mt19937_64 random(options.seed);
  SimTrace trace;
  const auto fresh = [&](std::vector<uint32_t>& blocks, size_t count) {
    while (count-- > 0) blocks.push_back(trace.unique_blocks++);
  };
  std::vector<uint32_t> universal;
  fresh(universal, options.universal_blocks);
  std::vector<std::vector<uint32_t>> systems(options.system_prompts, universal);
  for (std::vector<uint32_t>& system : systems) fresh(system, 1 + random() % 8);
  std::exponential_distribution<double> gap(options.requests_per_s / 4.5);  // turns a session
  std::exponential_distribution<double> think(1 / 90.0);
  std::lognormal_distribution<double> tokens(7.8, 1.1);
  std::lognormal_distribution<double> answer(5.5, 0.8);
  for (double start = 0; trace.requests.size() < options.requests; start += gap(random)) {
    const size_t system = random() % 2 == 0 ? 0 : random() % systems.size();
    std::vector<uint32_t> blocks = systems[system];
    double at = start;
    for (uint64_t turn = 1 + random() % 8; turn > 0; --turn) {
      const double more = std::clamp(tokens(random), 64.0, 60'000.0);
      fresh(blocks, static_cast<size_t>(std::ceil(more / trace.block_tokens)));
      const auto whole = static_cast<uint32_t>(blocks.size()) * trace.block_tokens;
      trace.requests.push_back(
          {.arrival_s = at,
           .prompt_tokens = whole - static_cast<uint32_t>(random() % trace.block_tokens),
           .answer_tokens = static_cast<uint32_t>(std::clamp(answer(random), 2.0, 2000.0)),
           .blocks = blocks});
      at += 2 + think(random);
    }
  }
  SortByArrival(trace);
  trace.requests.resize(options.requests);
  return trace;
}

absl::StatusOr<SimTrace> LoadSource(const SimSource& source) {
  const bool day = source.day_hours > 0;
  const uint32_t copies = day ? 1 : source.copies;
  SimTrace trace;
  if (source.path.empty()) {
    trace = MakeTrace(source.synthetic);
  } else {
    ASSIGN_OR_RETURN(trace, LoadTrace(source.path, copies, /*seed=*/0));
  }
  if (!day) return trace;
  return SpreadOverDay(trace, source.copies,
                       {.hours = source.day_hours, .peak_over_trough = source.peak_over_trough});
}

}  // namespace penstock
