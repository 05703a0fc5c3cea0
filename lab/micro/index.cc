#include "lab/micro/index.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "lab/micro/index_load.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr double kEventBlocksPerSecond = 100'000;
constexpr uint64_t kReplayEvents = 2'300'000;
constexpr size_t kPrompts = 20'000;

struct LookupFigures {
  double per_second = 0;
  double p99_us = 0;
  double event_blocks_per_s = 0;
};

double SecondsSince(SteadyTime::time_point start) {
  return std::chrono::duration<double>(SteadyTime::now() - start).count();
}

// Keeps the pace until told to stop. Returns the blocks a second that it reached.
double FeedEvents(PrefixIndex& index, IndexLoad& load, const std::atomic<bool>& stop) {
  const auto start = SteadyTime::now();
  double blocks = 0;
  while (!stop) {
    blocks += static_cast<double>(load.Step(index));
    const std::chrono::duration<double> due(blocks / kEventBlocksPerSecond);
    std::this_thread::sleep_until(start + std::chrono::duration_cast<SteadyTime::duration>(due));
  }
  return blocks / SecondsSince(start);
}

LookupFigures LookUp(const PrefixIndex& index, const std::vector<std::vector<BlockId>>& prompts,
                     double seconds) {
  std::vector<float> took_us;
  took_us.reserve(1 << 22);
  PrefixMatches matches;
  const auto start = SteadyTime::now();
  auto before = start;
  for (size_t i = 0; SecondsSince(start) < seconds; ++i) {
    index.Find(prompts[i % prompts.size()], matches);
    const auto after = SteadyTime::now();
    took_us.push_back(std::chrono::duration<float, std::micro>(after - before).count());
    before = after;
  }
  LookupFigures figures{.per_second = static_cast<double>(took_us.size()) / SecondsSince(start)};
  const auto p99 = took_us.begin() + static_cast<std::ptrdiff_t>(took_us.size() * 99 / 100);
  std::nth_element(took_us.begin(), p99, took_us.end());
  figures.p99_us = *p99;
  return figures;
}

struct Measured {
  LookupFigures lookups;
  double bytes_per_block_worker = 0;
};

Measured MeasureLookups(const IndexBenchOptions& options, bool universal_prompt) {
  IndexLoad load({.blocks = options.blocks, .universal_prompt = universal_prompt});
  const std::vector<std::vector<BlockId>> prompts = load.Prompts(kPrompts);
  const auto used = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
  };
  const double before = used();
  PrefixIndex index;
  load.Fill(index);
  uint64_t held = 0;
  for (uint32_t worker = 0; worker < IndexLoad::kWorkers; ++worker) held += index.blocks_of(worker);
  Measured measured;
  measured.bytes_per_block_worker = (used() - before) / static_cast<double>(held);
  std::atomic<bool> stop{false};
  double fed = 0;
  std::thread feeder([&] { fed = FeedEvents(index, load, stop); });
  LookUp(index, prompts, options.seconds / 10);  // warms up
  measured.lookups = LookUp(index, prompts, options.seconds);
  stop = true;
  feeder.join();
  measured.lookups.event_blocks_per_s = fed;
  return measured;
}

// Every event is one block.
double MeasureReplay(const IndexBenchOptions& options) {
  IndexLoad load({.blocks = options.blocks, .one_block_an_event = true});
  PrefixIndex index;
  load.Fill(index);
  const auto start = SteadyTime::now();
  for (uint64_t events = 0; events < kReplayEvents;) events += load.Step(index);
  return SecondsSince(start);
}

BenchRow MoreIsBetter(std::string name, double value, std::string unit, double goal) {
  return {std::move(name), value, std::move(unit), goal, value / goal};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunIndexBench(
    const IndexBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  progress("look-ups");
  const Measured plain = MeasureLookups(options, false);
  progress("look-ups behind one system prompt");
  const Measured universal = MeasureLookups(options, true);
  progress("replay");
  const double replay = MeasureReplay(options);
  const double loss = 1 - universal.lookups.per_second / plain.lookups.per_second;
  return std::vector<BenchRow>{
      MoreIsBetter("lookups_per_s", plain.lookups.per_second, "/s", 250'000),
      MoreIsBetter("lookup_p99", plain.lookups.p99_us, "us", 200),
      MoreIsBetter("event_blocks_per_s", plain.lookups.event_blocks_per_s, "/s",
                   kEventBlocksPerSecond),
      MoreIsBetter("universal_prompt_loss", loss, "", 0.2),
      MoreIsBetter("bytes_per_block_worker", plain.bytes_per_block_worker, "B", 40),
      MoreIsBetter("replay_2_3m", replay, "s", 3),
  };
}

}  // namespace penstock
