#include "tests/world/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/world/machine/random.h"
#include "tests/world/model.h"
#include "tests/world/oracle.h"

namespace penstock::world {
namespace {

constexpr int kSystems = 2;  // system prompts, with which most conversations begin
constexpr int kConversations = 6;
constexpr size_t kConversationMax = 300;  // tokens
constexpr const char* kModel = "model-a";
constexpr Duration kRequestEvery = std::chrono::milliseconds(40);
constexpr Duration kRequestEveryInBurst = std::chrono::milliseconds(8);
constexpr int kProbes = 6;

std::vector<uint32_t> Letters(Random& random, size_t count) {
  std::vector<uint32_t> letters;
  for (size_t i = 0; i < count; ++i) {
    letters.push_back('a' + static_cast<uint32_t>(random.Below(26)));
  }
  return letters;
}

void Append(std::vector<uint32_t>& prompt, const std::vector<uint32_t>& more) {
  prompt.insert(prompt.end(), more.begin(), more.end());
}

// A message as chat templates write it: its role between marks, its text, and a mark behind it.
std::vector<uint32_t> ChatMessage(char role, const std::vector<uint32_t>& text) {
  std::vector<uint32_t> message = {kRoleToken, static_cast<uint32_t>(role), '\n'};
  Append(message, text);
  Append(message, {kEndToken, '\n'});
  return message;
}

std::vector<std::string> Stops(Random& random) {
  std::vector<std::string> stops;
  if (!random.Chance(250)) return stops;
  for (uint64_t i = 0; i <= random.Below(3); ++i) {
    const std::vector<uint32_t> letters = Letters(random, 1 + random.Below(2));
    stops.emplace_back(letters.begin(), letters.end());
  }
  return stops;
}

class Planner {
 public:
  Planner(uint64_t seed, const PlanOptions& options) : random_(seed), options_(options) {
    for (int i = 0; i < kSystems; ++i) {
      systems_.push_back(ChatMessage('s', Letters(random_, 32 + random_.Below(64))));
    }
    for (int i = 0; i < kConversations; ++i) prefixes_.push_back(Conversation());
    plan_.seed = seed;
    plan_.planned = !options.hurried;
    plan_.prefill_workers = Workers();
    plan_.decode_workers = Workers();
    burst_ = options.hurried && random_.Chance(300);
    if (!random_.Chance(500)) return;
    // Few pages: with much host memory sessions are swapped out, with little blocks go to NVMe.
    plan_.pages = 60;
    plan_.slots = random_.Chance(500) ? 400 : 16;
  }

  Plan Make() {
    for (int i = 0; i < options_.requests; ++i) AddRequest();
    for (int i = 0; i < options_.faults; ++i) AddFault();
    std::stable_sort(plan_.faults.begin(), plan_.faults.end(),
                     [](const Fault& x, const Fault& y) { return x.at < y.at; });
    last_ = {};
    for (int i = 0; i < kProbes; ++i) plan_.probes.push_back(Calm(NewRequest()));
    return std::move(plan_);
  }

 private:
  int Workers() {
    const bool alone = random_.Chance(150) && options_.hurried;
    return alone ? 1 : 2 + static_cast<int>(random_.Below(2));
  }

  // The common prefix of a conversation's prompts.
  std::vector<uint32_t> Conversation() {
    if (random_.Chance(300)) return Letters(random_, 16 + random_.Below(160));
    std::vector<uint32_t> prompt = systems_[random_.Below(systems_.size())];
    Append(prompt, ChatMessage('u', Letters(random_, 1 + random_.Below(64))));
    return prompt;
  }

  // The conversation goes on where this prompt ends, or where the answer to it does.
  void GoOn(const RequestPlan& request) {
    std::vector<uint32_t>& prefix = prefixes_[random_.Below(prefixes_.size())];
    prefix = request.prompt;
    if (!random_.Chance(500)) return;
    Append(prefix, Expect(request, ModelNumber(kModel))[0].tokens);
    if (prefix.size() > kConversationMax) prefix.resize(kConversationMax);
  }

  static RequestPlan Calm(RequestPlan request) {
    request.deadline = request.cancelled = {};
    return request;
  }

  void AddRequest() {
    const RequestPlan request = NewRequest();
    plan_.requests.push_back(options_.hurried ? request : Calm(request));
  }

  RequestPlan NewRequest() {
    last_ += random_.Between(Duration::zero(), 2 * (burst_ ? kRequestEveryInBurst : kRequestEvery));
    RequestPlan request{.at = last_};
    request.prompt = prefixes_[random_.Below(prefixes_.size())];
    if (random_.Chance(300)) request.prompt.resize(1 + random_.Below(request.prompt.size()));
    Append(request.prompt, Letters(random_, random_.Below(60)));
    request.choices = random_.Chance(200) ? 2 + static_cast<uint32_t>(random_.Below(3)) : 1;
    request.max_tokens = 1 + static_cast<uint32_t>(random_.Below(random_.Chance(200) ? 120 : 32));
    request.min_tokens = random_.Chance(100) ? request.max_tokens / 2 : 0;
    request.temperature = random_.Chance(500) ? 0 : 0.8f;
    request.top_p = random_.Chance(300) ? 0.9f : 1;
    request.frequency_penalty = random_.Chance(150) ? 0.7f : 0;
    request.repetition_penalty = random_.Chance(150) ? 1.2f : 1;
    request.seed = random_.Below(uint64_t{1} << 62);
    request.stops = Stops(random_);
    request.include_stop = random_.Chance(300);
    request.top_logprobs = random_.Chance(200) ? static_cast<int32_t>(random_.Below(4)) : -1;
    request.priority = random_.Chance(200) ? static_cast<int32_t>(random_.Below(21)) - 10 : 0;
    if (random_.Chance(300)) request.salt = random_.Chance(500) ? "tenant-1" : "tenant-2";
    if (random_.Chance(100)) request.kv_policy = random_.Chance(500) ? "i8" : "near-lossless";
    if (random_.Chance(100)) request.deadline = Milliseconds(20, 4000);
    if (random_.Chance(100)) request.cancelled = Milliseconds(1, 1000);
    if (random_.Chance(400) && request.prompt.size() < kConversationMax) GoOn(request);
    return request;
  }

  FaultKind Kind() {
    if (!options_.kinds.empty()) return options_.kinds[random_.Below(options_.kinds.size())];
    return static_cast<FaultKind>(random_.Below(static_cast<uint64_t>(FaultKind::kPoison)));
  }

  void AddFault() {
    const int workers = plan_.prefill_workers + plan_.decode_workers;
    Fault fault{.kind = Kind()};
    fault.at = Duration(random_.Below(static_cast<uint64_t>(last_.count()) + 1));
    fault.lasts = Milliseconds(10, random_.Chance(300) ? 9000 : 2000);
    fault.a = static_cast<int>(random_.Below(static_cast<uint64_t>(workers)));
    fault.b = static_cast<int>(random_.Below(static_cast<uint64_t>(workers) + 1));  // + the router
    fault.amount = static_cast<int64_t>(2 + random_.Below(60));
    if (fault.kind == FaultKind::kRouterCrash) fault.lasts /= 10;
    if (fault.kind == FaultKind::kClockJump) fault.amount = (fault.amount - 30) * 100;
    plan_.faults.push_back(fault);
  }

  Duration Milliseconds(int64_t min, int64_t max) {
    return random_.Between(std::chrono::milliseconds(min), std::chrono::milliseconds(max));
  }

  Random random_;
  const PlanOptions options_;
  Plan plan_;
  std::vector<std::vector<uint32_t>> systems_;
  std::vector<std::vector<uint32_t>> prefixes_;  // of conversations
  bool burst_ = false;
  Duration last_ = std::chrono::milliseconds(500);
};

}  // namespace

const char* FaultName(FaultKind kind) {
  static constexpr const char* kNames[] = {"crash",
                                           "crash_without_disk",
                                           "crash_other_model",
                                           "pause",
                                           "slow",
                                           "partition",
                                           "partition_one_way",
                                           "latency",
                                           "slabs",
                                           "clock_jump",
                                           "listing",
                                           "disk_fails",
                                           "disk_full",
                                           "drain",
                                           "turn",
                                           "router_crash",
                                           "poison"};
  static_assert(std::size(kNames) == static_cast<size_t>(FaultKind::kFaultKinds));
  return kNames[static_cast<size_t>(kind)];
}

Plan MakePlan(uint64_t seed, const PlanOptions& options) { return Planner(seed, options).Make(); }

std::string Describe(const Fault& fault) {
  return fmt::format("{:9.3f} ms  {} a={} b={} amount={} for {:.3f} ms", Milliseconds(fault.at),
                     FaultName(fault.kind), fault.a, fault.b, fault.amount,
                     Milliseconds(fault.lasts));
}

std::string Describe(const RequestPlan& request) {
  return fmt::format(
      "{:9.3f} ms  request of {} tokens, {} x {} answered, deadline {:.0f} ms, cancelled {:.0f} ms",
      Milliseconds(request.at), request.prompt.size(), request.choices, request.max_tokens,
      Milliseconds(request.deadline), Milliseconds(request.cancelled));
}

}  // namespace penstock::world
