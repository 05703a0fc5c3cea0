#include "tests/sim/handoff_world.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/handoff_world_bounds.h"

namespace penstock::sim {

using std::chrono::milliseconds;

void WorldTotals::operator+=(const WorldTotals& other) {
  attempts += other.attempts;
  committed += other.committed;
  failed += other.failed;
  cancelled += other.cancelled;
  crashes += other.crashes;
  partitions += other.partitions;
  waited += other.waited;
}

namespace {

Weather ChooseWeather(Simulation& simulation) {
  const uint64_t chance = simulation.Below(100);
  return chance < 15 ? Weather::kCalm : chance < 35 ? Weather::kLossy : Weather::kHostile;
}

NetworkFaults ChooseFaults(Simulation& simulation, Weather weather) {
  NetworkFaults faults{.delay_max = simulation.Between(milliseconds(1), milliseconds(12))};
  if (weather == Weather::kCalm) return faults;
  // Each world has some of them, so that a fault is also seen alone.
  if (simulation.Chance(500)) faults.slab_lost = simulation.Below(80);
  if (weather == Weather::kHostile && simulation.Chance(300))
    faults.slab_damaged = simulation.Below(30);
  if (simulation.Chance(500)) faults.slab_replayed = simulation.Below(400);
  if (simulation.Chance(500)) faults.end_lost = simulation.Below(150);
  if (simulation.Chance(500)) faults.put_refused = simulation.Below(200);
  if (simulation.Chance(500)) faults.early_end = simulation.Below(300);
  if (simulation.Chance(300)) faults.slab_stuck = simulation.Below(20);
  return faults;
}

}  // namespace

HandoffWorld::HandoffWorld(uint64_t seed)
    : simulation_(seed),
      weather_(ChooseWeather(simulation_)),
      compute_most_(milliseconds(simulation_.Chance(200) ? 80 : 8)),
      router_slow_most_(milliseconds(hostile() && simulation_.Chance(300) ? 3000 : 20)),
      faults_(ChooseFaults(simulation_, weather_)),
      network_(simulation_, faults_) {
  const uint64_t prefills = 1 + simulation_.Below(2);
  const uint64_t decodes = 1 + simulation_.Below(2);
  for (uint64_t i = 0; i < prefills; ++i) {
    StartPrefill(AddWorker(&prefills_, static_cast<int>(i)));
  }
  for (uint64_t i = 0; i < decodes; ++i) {
    StartDecode(AddWorker(&decodes_, static_cast<int>(100 + i)));
  }
  PlanLoad();
  if (hostile()) PlanFaults();
  Tick();
}

HandoffWorld::~HandoffWorld() {
  for (auto& worker : prefills_) Crash(*worker, /*prefill=*/true);
  for (auto& worker : decodes_) Crash(*worker, /*prefill=*/false);
}

bool HandoffWorld::Run() {
  const TimePoint end = simulation_.now() + kLoadUntil + kFaultsUntil +
                        (hostile() ? kDeadlineMax : kPatience) + kEmptyBound;
  PollAll();
  while (!simulation_.failed() && !Served() && simulation_.Step(end)) {
    PollAll();
    CheckAll();
  }
  if (!simulation_.failed()) CheckEmpty();
  return !simulation_.failed();
}

// A world without faults need not wait for its end.
bool HandoffWorld::Served() const {
  if (hostile() || requests_.empty()) return false;
  const auto ended = [](const Request& request) { return request.ended; };
  return std::all_of(requests_.begin(), requests_.end(), ended) &&
         std::all_of(prefills_.begin(), prefills_.end(),
                     [](const auto& worker) { return worker->sender->handoffs() == 0; }) &&
         std::all_of(decodes_.begin(), decodes_.end(),
                     [](const auto& worker) { return worker->receiver->load().staging_used == 0; });
}

// Workers.

HandoffWorld::Worker& HandoffWorld::AddWorker(std::vector<std::unique_ptr<Worker>>* workers,
                                              int host) {
  workers->push_back(std::make_unique<Worker>());
  workers->back()->host = host;
  return *workers->back();
}

void HandoffWorld::StartPrefill(Worker& worker) {
  worker.process = std::make_shared<Process>();
  worker.process->host = worker.host;
  worker.process->name = fmt::format("prefill-{}#{}", worker.host, worker.incarnation++);
  worker.pool = *BlockPool::Create(kLayout, hostile() ? 60 : 200);
  worker.wire = network_.MakeWire(worker.process);
  KvSenderOptions options{.timing = kTiming,
                          .slabs = {.min = 256, .max = 512},
                          .staging_bytes = kStaging,
                          .put_timeout = kPutTimeout,
                          .lane_idle = milliseconds(200)};
  worker.sender = std::make_unique<KvSender>(std::move(options), kFormat, simulation_.clock(),
                                             *worker.wire, worker.pool->view());
  worker.process->sender = worker.sender.get();
}

void HandoffWorld::StartDecode(Worker& worker) {
  worker.process = std::make_shared<Process>();
  worker.process->host = worker.host;
  worker.process->name = fmt::format("decode-{}#{}", worker.host, worker.incarnation++);
  worker.pool = *BlockPool::Create(kLayout, 24 + static_cast<int64_t>(simulation_.Below(40)));
  KvReceiverOptions options{.timing = kTiming,
                            .staging_bytes = kStaging,
                            .waiting_max = kWaitingMax,
                            .writer = SlowWriter(worker)};
  worker.receiver =
      std::make_unique<KvReceiver>(std::move(options), kFormat, simulation_.clock(), *worker.pool);
  worker.process->receiver = worker.receiver.get();
  worker.receiver->SetWireAddress(worker.process->name);
  network_.Attach(worker.process->name, worker.process);
}

// As kill -9, but for what C++ wants to see cleaned up. The world hears no more from it.
void HandoffWorld::Crash(Worker& worker, bool prefill) {
  network_.Kill(worker.process);
  while (!worker.writes.empty()) {
    const auto write = std::move(worker.writes.extract(worker.writes.begin()).mapped());
    write();
  }
  for (auto& attempt : attempts_) {
    if (prefill && attempt->prefill == worker.process) attempt->pages.clear();
    if (!prefill && attempt->decode == worker.process) attempt->received = ReceivedKv();
  }
  worker.sender.reset();
  worker.receiver.reset();
  worker.wire.reset();
  worker.pool.reset();  // CHECKs that nothing is left.
}

// At once, or later, as a device does it: meanwhile the handoff may end.
SlabWriter HandoffWorld::SlowWriter(Worker& worker) {
  return [this, &worker](const SlabWrite& write, std::function<void()> written) {
    const PagedKv kv = worker.pool->view();
    if (simulation_.Chance(500)) {
      ScatterSlab(kv, write.header, write.blocks, write.raw);
      written();
      return;
    }
    const uint64_t id = next_write_++;
    worker.writes[id] = [kv, write, written = std::move(written)] {
      ScatterSlab(kv, write.header, write.blocks, write.raw);
      written();
    };
    simulation_.After(simulation_.Between({}, milliseconds(60)), [&worker, id] {
      const auto found = worker.writes.find(id);
      if (found == worker.writes.end()) return;
      const auto finish = std::move(worker.writes.extract(found).mapped());
      finish();
    });
  };
}

void HandoffWorld::At(const ProcessRef& process, Duration delay, std::function<void()> event) {
  simulation_.After(delay, [this, process, event = std::move(event)] {
    if (!process->alive) return;
    if (process->paused_until > simulation_.now()) {
      At(process, process->paused_until - simulation_.now(), event);
    } else {
      event();
    }
  });
}

// The router.

void HandoffWorld::Arrive(int request) {
  const Duration patience =
      hostile() ? simulation_.Between(milliseconds(50), kDeadlineMax) : kPatience;
  simulation_.After(patience, [this, request] { Cancel(request); });
  if (hostile() && simulation_.Chance(150)) {  // The client goes away.
    simulation_.After(simulation_.Between({}, milliseconds(200)),
                      [this, request] { Cancel(request); });
  }
  Plan(request);
}

void HandoffWorld::Plan(int id) {
  Request& request = requests_[id];
  const size_t index = attempts_.size();
  attempts_.push_back(std::make_unique<Attempt>());
  Attempt& attempt = *attempts_.back();
  // A restarted router may use an epoch again: the nonce tells the attempts apart.
  const bool same_epoch = request.plans > 0 && simulation_.Chance(300);
  if (!same_epoch) ++request.plans;
  attempt.key = {.session = static_cast<uint64_t>(id),
                 .epoch = static_cast<uint32_t>(request.plans),
                 .nonce = simulation_.Random()};
  attempt.request = id;
  attempt.tokens = request.tokens;
  attempt.blocks = kLayout.BlocksFor(request.tokens) + static_cast<int64_t>(simulation_.Below(4));
  attempt.prefill = prefills_[simulation_.Below(prefills_.size())]->process;
  attempt.decode = decodes_[simulation_.Below(decodes_.size())]->process;
  request.attempts.push_back(index);
  ++totals_.attempts;
  simulation_.Note(fmt::format("plan {} of {} tokens: {} to {}", HandoffKeyText(attempt.key),
                               attempt.tokens, attempt.prefill->name, attempt.decode->name));
  const Duration max = !hostile() || simulation_.Chance(900) ? milliseconds(20) : milliseconds(600);
  At(attempt.decode, simulation_.Between({}, max), [this, index] { BeginDecode(index); });
  At(attempt.prefill, simulation_.Between({}, max), [this, index] { BeginPrefill(index); });
}

// The client is gone or its deadline has passed.
void HandoffWorld::Cancel(int id) {
  Request& request = requests_[id];
  if (request.ended || !std::exchange(request.wanted, false)) return;
  ++totals_.cancelled;
  for (const size_t attempt : request.attempts) CancelAttempt(attempt);
}

void HandoffWorld::CancelAttempt(size_t index) {
  Attempt& attempt = *attempts_[index];
  if (std::exchange(attempt.cancelled, true)) return;
  attempt.cancelled_at = simulation_.now();
  simulation_.Note(fmt::format("cancel {}", HandoffKeyText(attempt.key)));
  const absl::Status why = absl::CancelledError("the router");
  At(attempt.prefill, simulation_.Between({}, milliseconds(30)), [this, index, why] {
    const Attempt& one = *attempts_[index];
    one.prefill->sender->Cancel(one.key, why);
  });
  At(attempt.decode, simulation_.Between({}, milliseconds(30)), [this, index, why] {
    const Attempt& one = *attempts_[index];
    one.decode->receiver->Cancel(one.key, why);
  });
}

// A worker has ended its call.
void HandoffWorld::Heard(size_t index, const absl::Status& status, bool from_decode) {
  simulation_.Note(fmt::format("{} {}: {}", HandoffKeyText(attempts_[index]->key),
                               from_decode ? "decode" : "prefill", status.ToString()));
  simulation_.After(simulation_.Between({}, milliseconds(20)), [this, index, status] {
    Attempt& attempt = *attempts_[index];
    Request& request = requests_[attempt.request];
    if (status.ok() || attempt.settled || request.ended) return;
    ++totals_.failed;
    attempt.settled = true;
    simulation_.After(simulation_.Between({}, router_slow_most_),
                      [this, index] { CancelAttempt(index); });
    if (RetryElsewhere(status) && request.wanted && request.attempts.size() < 5) {
      Plan(attempt.request);
    } else if (!hostile() && request.wanted) {
      simulation_.Fail(fmt::format("{} failed though nothing stood in its way: {}",
                                   HandoffKeyText(attempt.key), status.ToString()));
    }
  });
}

// The workers.

void HandoffWorld::BeginDecode(size_t index) {
  Attempt& attempt = *attempts_[index];
  if (attempt.cancelled) return;
  attempt.receiver = Side::kOpen;
  const auto end = [this, index](Side side) {
    Attempt& one = *attempts_[index];
    if (!one.decode->alive) return;
    if (one.receiver != Side::kOpen) simulation_.Fail("the receiver answered twice");
    one.receiver = side;
  };
  const absl::Status status =
      attempt.decode->receiver->Expect({.key = attempt.key,
                                        .tokens = attempt.tokens,
                                        .blocks = attempt.blocks,
                                        .first = {.choices = 1, .vocab = UINT32_MAX},
                                        .on_admitted = [&attempt] { attempt.admitted = true; },
                                        .on_committed =
                                            [this, index, end](ReceivedKv kv) {
                                              end(Side::kOk);
                                              if (attempts_[index]->decode->alive)
                                                OnCommitted(index, std::move(kv));
                                            },
                                        .on_failed =
                                            [this, index, end](const absl::Status& why) {
                                              end(Side::kFailed);
                                              if (attempts_[index]->decode->alive)
                                                Heard(index, why, true);
                                            }});
  if (!attempt.admitted) ++totals_.waited;
  if (!status.ok()) {
    attempt.receiver = Side::kFailed;
    Heard(index, absl::IsResourceExhausted(status) ? absl::UnavailableError("full") : status, true);
  }
}

void HandoffWorld::BeginPrefill(size_t index) {
  Attempt& attempt = *attempts_[index];
  if (attempt.cancelled) return;
  attempt.sender = Side::kOpen;
  attempt.stream = network_.OpenStream(attempt.key, attempt.prefill, attempt.decode);
  const auto end = [this, index](Side side, const absl::Status& status) {
    Attempt& one = *attempts_[index];
    if (!one.prefill->alive) return;
    if (one.sender != Side::kOpen) simulation_.Fail("the sender answered twice");
    one.sender = side;
    Heard(index, status, false);
  };
  const absl::Status status = attempt.prefill->sender->Start(
      {.key = attempt.key,
       .tokens = attempt.tokens,
       .channel = attempt.stream->sender_channel(),
       .on_committed =
           [this, index, end](const KvSendStats& stats) {
             end(Side::kOk, absl::OkStatus());
             const Attempt& one = *attempts_[index];
             EndWhenBothAreDone(one);
             if (one.receiver == Side::kOpen && one.decode->alive) {
               simulation_.Fail("the sender heard Committed and the receiver has not committed");
             }
             if (stats.kv_bytes != kLayout.BlocksFor(one.tokens) * kLayout.PayloadBytes()) {
               simulation_.Fail(fmt::format("the sender counts {} bytes", stats.kv_bytes));
             }
           },
       .on_failed = [end](const absl::Status& why) { end(Side::kFailed, why); }});
  if (!status.ok()) simulation_.Fail("Start: " + status.ToString());
  At(attempt.prefill, simulation_.Between({}, milliseconds(10)), [this, index] { Compute(index); });
}

// One chunk, when there are pages for all of it.
void HandoffWorld::Compute(size_t index) {
  Attempt& attempt = *attempts_[index];
  if (attempt.sender != Side::kOpen) {  // Ended meanwhile: the engine drops its pages.
    attempt.pages.clear();
    return;
  }
  if (attempt.pages.empty()) {
    Worker& worker = *prefills_[attempt.prefill->host];
    auto credit = worker.pool->Reserve(kLayout.BlocksFor(attempt.tokens));
    if (!credit.ok()) {
      At(attempt.prefill, milliseconds(15), [this, index] { Compute(index); });
      return;
    }
    attempt.pages = credit->Take(credit->blocks());
  }
  const uint32_t chunk = static_cast<uint32_t>(1 + simulation_.Below(30));
  ComputeLayers(index, std::min(attempt.tokens, attempt.computed + chunk), 0);
}

void HandoffWorld::ComputeLayers(size_t index, uint32_t last_token, int32_t layer) {
  Attempt& attempt = *attempts_[index];
  const PagedKv kv = prefills_[attempt.prefill->host]->pool->view();
  const auto groups = static_cast<int32_t>(1 + simulation_.Below(3));
  const int32_t last_layer = std::min(kLayout.layers, layer + groups);
  const uint32_t first_block = attempt.computed / kLayout.block_tokens;
  for (int32_t l = layer; l < last_layer; ++l) {
    for (uint32_t b = first_block; b * kLayout.block_tokens < last_token; ++b) {
      Fill(kv, attempt, b, l, last_token);
    }
  }
  attempt.prefill->sender->SendLayers(attempt.key, {.first_layer = layer,
                                                    .last_layer = last_layer,
                                                    .first_token = attempt.computed,
                                                    .last_token = last_token,
                                                    .blocks = attempt.pages});
  const Duration pause = simulation_.Between({}, compute_most_);
  if (last_layer < kLayout.layers) {
    At(attempt.prefill, pause,
       [this, index, last_token, last_layer] { ComputeLayers(index, last_token, last_layer); });
    return;
  }
  attempt.computed = last_token;
  if (attempt.computed < attempt.tokens) {
    At(attempt.prefill, pause, [this, index] { Compute(index); });
    return;
  }
  v1::TokenOut first;
  first.set_token(static_cast<uint32_t>(attempt.key.nonce));
  attempt.prefill->sender->Finish(attempt.key, {first});
  attempt.pages.clear();  // The sender holds its own.
}

void HandoffWorld::OnCommitted(size_t index, ReceivedKv kv) {
  Attempt& attempt = *attempts_[index];
  ++totals_.committed;
  attempt.received = std::move(kv);
  if (attempt.received.tokens != attempt.tokens || attempt.received.first.size() != 1 ||
      attempt.received.first[0].token() != static_cast<uint32_t>(attempt.key.nonce)) {
    simulation_.Fail("committed with other tokens than were sent");
  }
  for (const auto& other : attempts_) {
    if (other.get() == &attempt || other->decode != attempt.decode) continue;
    for (const BlockRef& a : other->received.blocks) {
      for (const BlockRef& b : attempt.received.blocks) {
        if (a.id() == b.id()) simulation_.Fail(fmt::format("block {} has two owners", a.id()));
      }
    }
  }
  CheckContent(attempt, "at commit");
  Heard(index, absl::OkStatus(), true);
  At(attempt.decode, simulation_.Between({}, milliseconds(250)),
     [this, index] { FinishDecode(index); });
}

// The answer is written: its pages are still what they were, and then somebody else's.
void HandoffWorld::FinishDecode(size_t index) {
  Attempt& attempt = *attempts_[index];
  CheckContent(attempt, "at the end of decoding");
  const PagedKv kv = decodes_[attempt.decode->host - 100]->pool->view();
  for (const BlockRef& block : attempt.received.blocks) {
    std::memset(kv.Block(block.id()), 0xee, kLayout.PayloadBytes());
  }
  attempt.received = ReceivedKv();
  if (simulation_.Chance(500)) attempt.decode->receiver->OnBlocksFreed();
  EndWhenBothAreDone(attempt);
}

void HandoffWorld::EndWhenBothAreDone(const Attempt& attempt) {
  const bool decoded = attempt.receiver == Side::kOk && attempt.received.blocks.empty();
  if (decoded && attempt.sender == Side::kOk) requests_[attempt.request].ended = true;
}

}  // namespace penstock::sim
