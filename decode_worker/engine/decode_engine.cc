#include "decode_worker/engine/decode_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "worker/engine/page_selection.h"

namespace penstock {
namespace {

// The store frees slots for swaps without a message.
constexpr Duration kSwapRetry = std::chrono::milliseconds(5);

// The error of a session whose row the model cannot compute. The request was checked, so it is
// never the client's fault.
absl::Status RowError(const absl::Status& status) {
  if (!absl::IsInvalidArgument(status)) return status;
  return Internal("the model refuses the session's next tokens: {}", Message(status));
}

}  // namespace

DecodeEngine::DecodeEngine(const DecodeParts& parts, Options options)
    : pool_(parts.pool),
      cache_(parts.cache),
      clock_(parts.clock),
      attention_(parts.runner.eviction_attention()),
      beside_(parts.runner.runs_beside_caller()),
      options_(std::move(options)),
      mailbox_(std::make_shared<Mailbox<DecodeJob>>(options_.sessions_max)),
      running_(options_.batch_max),
      preemption_({.pool = parts.pool,
                   .cache = parts.cache,
                   .store = parts.store,
                   .running = running_,
                   .wake = Waker()}),
      freezes_(parts.pool, running_, preemption_),
      prefills_({.chunk_tokens = options_.prefill_tokens,
                 .layout = parts.pool.view().layout,
                 .mtp_hidden = parts.mtp == nullptr ? 0 : parts.mtp->hidden_size()},
                parts.clock, parts.cache),
      outputs_(parts.runner),
      speculator_({.tokens = options_.draft_tokens,
                   .rows = options_.draft_rows,
                   .ngrams = options_.ngrams,
                   .random = options_.random_drafts,
                   .draft = parts.draft,
                   .mtp = parts.mtp,
                   .progress = options_.progress}) {}

DecodeEngine::~DecodeEngine() { Stop(); }

void DecodeEngine::Start() {
  thread_ = std::thread([this] {
    NameThisThread("engine-decode");
    Run();
  });
}

void DecodeEngine::Stop() {
  mailbox_->Close();
  if (thread_.joinable()) thread_.join();
}

void DecodeEngine::Add(DecodeJob job) {
  const std::shared_ptr<DecodeSink> sink = job.sink;
  if (mailbox_->TryAdd(std::move(job))) return;
  PENSTOCK_CHECK(mailbox_->closed());
  sink->OnEnd(Unavailable("the decode worker is shutting down"));
}

void DecodeEngine::Cancel(const HandoffKey& key) { mailbox_->Cancel(key); }

void DecodeEngine::Freeze(FreezeRequest request) {
  freezes_.Add(std::move(request));
  mailbox_->Wake();
}

void DecodeEngine::Unfreeze(const UnfreezeRequest& request) {
  freezes_.Add(request);
  mailbox_->Wake();
}

void DecodeEngine::Run() {
  while (!mailbox_->closed()) {
    BeatOnce();
    TakeMail();
    preemption_.BeginTurn();
    const uint64_t freed = cache_.freed_count();
    Resume();
    freezes_.Serve();
    stalled_ = !(running_.empty() && prefills_.empty()) && !Step();
    EndTurn();
    AwaitRoom(freed);
  }
  room_wait_ = {};
  TakeMail();
  EndAll(Unavailable("the decode worker is shutting down"));
  freezes_.Serve();
  EndTurn();
}

void DecodeEngine::BeatOnce() {
  if (options_.progress != nullptr) options_.progress->Beat();
}

void DecodeEngine::EndTurn() {
  TellTurn();
  untold_ = true;
  if (!GoesOn() || !beside_) TellTurn();
}

void DecodeEngine::TellTurn() {
  if (std::exchange(untold_, false) && options_.on_turn) options_.on_turn();
}

bool DecodeEngine::GoesOn() const { return !(running_.empty() && prefills_.empty()) && !stalled_; }

Duration DecodeEngine::Patience() const {
  if (mailbox_->closed() || GoesOn()) return Duration::zero();
  return preemption_.refused() ? kSwapRetry : options_.idle_beat;
}

// Blocks that come free wake the engine if a session waits for some. `freed_count` was read before
// the turn looked for blocks. A session that is swapped in wakes the engine by itself.
void DecodeEngine::AwaitRoom(uint64_t freed_count) {
  const bool waits = stalled_ || !preemption_.empty();
  room_wait_ = waits && Patience() > Duration::zero() ? cache_.WhenFreed(freed_count, Waker())
                                                      : FreedWaiters::Wait();
}

void DecodeEngine::Resume() {
  const bool full = !preemption_.empty();
  if (!full) return;
  preemption_.ResumeOldest();
  CountSequences();
  TellRoom(full);
}

std::function<void()> DecodeEngine::Waker() const {
  return [mailbox = mailbox_] { mailbox->Wake(); };
}

void DecodeEngine::TakeMail() {
  for (auto& item : mailbox_->Take(Patience())) {
    if (DecodeJob* const job = std::get_if<DecodeJob>(&item)) {
      Begin(std::move(*job));
    } else {
      Drop(std::get<HandoffKey>(item));
    }
  }
}

void DecodeEngine::Begin(DecodeJob job) {
  if (job.prefill) {
    prefills_.Add(std::move(job));
    return CountSequences();
  }
  KeepPrompt(job);
  Decode(std::move(job));
}

// Caches the prompt's full blocks. Returns the number of its tokens that are pinned.
int64_t DecodeEngine::KeepPrompt(DecodeJob& job) {
  if (job.eviction || job.blended) return 0;
  cache_.Insert(job.access, job.prompt, std::span(job.blocks).first(job.prompt.ids.size()));
  return cache_.Pin(job.prompt, job.pins);
}

void DecodeEngine::Decode(DecodeJob job) {
  if (job.beams) return Search(std::move(job));
  const std::shared_ptr<DecodeSink> sink = job.sink;
  const std::vector<uint32_t> tokens = speculator_.on() ? job.tokens : std::vector<uint32_t>();
  const std::vector<float> hidden = std::move(job.hidden);
  std::vector<DecodeSequence> choices = ForkChoices(std::move(job), pool_.view());
  if (choices.empty()) return sink->OnEnd(absl::OkStatus());
  for (DecodeSequence& sequence : choices) {
    sequence.id = running_.NewId();
    speculator_.Begin(sequence, tokens, hidden);
  }
  Enter(std::move(choices));
}

void DecodeEngine::Enter(std::vector<DecodeSequence> choices) {
  running_.Enter(std::move(choices));
  CountSequences();
}

void DecodeEngine::CountSequences() {
  sequences_open_ =
      static_cast<int64_t>(running_.size() + prefills_.size()) + preemption_.choices_open();
  sessions_preempted_ = preemption_.sessions();
}

bool DecodeEngine::Grow(DecodeSequence& sequence, int32_t more) {
  if (!FitLimit(sequence, more)) return false;
  if (!sequence.needs_block(pool_.view().layout.block_tokens, more)) return true;
  if (!TakeGrowth(*sequence.session, 1)) return false;
  sequence.Append(std::move(sequence.session->growth.Take(1).front()));
  HoldRows(sequence);
  return true;
}

bool DecodeEngine::TakeGrowth(DecodeSession& session, int64_t blocks) {
  BlockCredit& growth = session.growth;
  if (growth.blocks() >= blocks) return true;
  if (!session.swap) {
    PENSTOCK_CHECK(session.exchanges > running_.BlocksHeld(session),
                   "a session with blocks for its longest answers needs more");
    Exchange(session, {});
    return growth.blocks() >= blocks;
  }
  std::optional<BlockCredit> more =
      cache_.Reserve(blocks - growth.blocks(), preemption_.GrowthAhead());
  if (!more) return false;
  growth.Merge(*std::move(more));
  return true;
}

void DecodeEngine::Drop(const HandoffKey& key) {
  prefills_.Drop(key);
  for (const uint64_t id : running_.IdsOf(key)) End(id);
  const bool full = !preemption_.empty();
  preemption_.Drop(key);
  TellRoom(full);
  CountSequences();
}

// `full`: there were preempted sessions before.
void DecodeEngine::TellRoom(bool full) const {
  if (full && preemption_.empty() && options_.on_room) options_.on_room();
}

void DecodeEngine::Keep(DecodeSequence& sequence) {
  if (sequence.session->eviction || sequence.session->blended) return;
  PromptBlocks all = sequence.session->prompt;
  cache_.Extend(all, sequence.tail);
  DropSelectedNames(all, sequence.session->selection, pool_.view().layout.block_tokens);
  sequence.kept = all.ids.size();
  cache_.Insert(sequence.session->access, all, std::span(sequence.blocks).first(all.ids.size()));
}

void DecodeEngine::End(uint64_t id, bool keep) {
  if (keep) Keep(running_.at(id));
  running_.Remove(id);
  CountSequences();
}

bool DecodeEngine::Step() {
  const std::vector<uint64_t> batch = NextBatch();
  const bool prefill = !prefills_.empty() && prefills_.MakeRoom();
  if (batch.empty() && !prefill) return false;
  const std::function<bool(DecodeSequence&, int32_t)> grow =
      [this](DecodeSequence& sequence, int32_t more) { return Grow(sequence, more); };
  const Speculator::Batch planned{.ids = batch, .sequences = running_.all(), .grow = grow};
  if (speculator_.ComputesGuesses()) TellTurn();  // nobody waits for tokens while it does
  if (prefill) {
    speculator_.PlanNone(planned);
  } else {
    speculator_.Plan(planned);
  }
  if (!Compute(batch, prefill).ok()) ComputeAlone(batch, prefill);
  return true;
}

// The sequences of the next step, all of which have room for their next token. The oldest get
// blocks first.
std::vector<uint64_t> DecodeEngine::NextBatch() {
  std::vector<uint64_t> batch = running_.NextBatch(pool_.view());
  again_left_ = kAgainTokensMax;
  std::erase_if(batch, [this](uint64_t id) { return !TakeAgain(running_.at(id), 1); });
  const size_t chosen = batch.size();
  std::erase_if(batch, [this](uint64_t id) { return !Grow(running_.at(id)); });
  if (batch.size() < chosen) {
    preemption_.PreemptYoungest();
    CountSequences();
  }
  std::erase_if(batch, [this](uint64_t id) { return !running_.Has(id); });
  return batch;
}

// Computes one token of each sequence of `batch`, and its guesses, and, if `prefill`, the next
// tokens of the oldest local prefill. After an error nothing has changed.
absl::Status DecodeEngine::Compute(std::span<const uint64_t> batch, bool prefill) {
  std::vector<SequenceStep> steps;
  std::vector<size_t> first_outputs;
  size_t rows = 0;  // with outputs
  for (const uint64_t id : batch) {
    first_outputs.push_back(rows);
    AddRows(running_.at(id), steps);
    rows += running_.at(id).guesses.size() + 1;
  }
  const TimePoint begun = clock_.Now();
  const bool completes = prefill && prefills_.NextIsLast();
  if (prefill) steps.push_back(prefills_.Next());
  if (completes) outputs_.Want(steps.back(), prefills_.Draws());
  const Observation observation = ObservationOf(batch);
  const absl::Status status = outputs_.Run({.sequences = steps,
                                            .kv = pool_.view(),
                                            .logits = {},
                                            .on_layers_done = {},
                                            .layers_per_group = 0,
                                            .on_queries = observation.take,
                                            .observed = observation.rows,
                                            .guesses = rows - batch.size(),
                                            .meanwhile = [this] { TellTurn(); }});
  ++steps_;
  RETURN_IF_ERROR(status);
  for (size_t i = 0; i < batch.size(); ++i) {
    // A choice earlier in the batch may have ended the session.
    if (running_.Has(batch[i])) Advance(running_.at(batch[i]), first_outputs[i]);
  }
  std::optional<double> seconds;
  if (prefill) {
    AdvancePrefill(completes ? outputs_.at(rows) : StepOutput{});
  } else {
    seconds = Milliseconds(clock_.Now() - begun) / 1000;
  }
  speculator_.EndStep(static_cast<int64_t>(rows), seconds);
  return absl::OkStatus();
}

// Computes the rows of a failed step one by one, so that a row that the model refuses ends only its
// own session.
void DecodeEngine::ComputeAlone(std::span<const uint64_t> batch, bool prefill) {
  for (const uint64_t id : batch) {
    if (!running_.Has(id)) continue;  // another choice has ended the session
    DecodeSequence& sequence = running_.at(id);
    const HandoffKey key = sequence.session->key;
    sequence.guesses.clear();
    BeatOnce();
    if (const absl::Status status = Compute({&id, 1}, false); !status.ok()) {
      Fail(key, RowError(status));
    }
  }
  if (!prefill) return;
  BeatOnce();
  if (const absl::Status status = Compute({}, true); !status.ok()) prefills_.Fail(RowError(status));
  CountSequences();
}

void DecodeEngine::AdvancePrefill(const StepOutput& output) {
  if (std::optional<FinishedPrefill> finished = prefills_.Advance(output)) {
    finished->first.set_pinned_tokens(static_cast<uint32_t>(KeepPrompt(finished->job)));
    finished->job.sink->OnFirst(std::move(finished->first));
    Decode(std::move(finished->job));
  }
  CountSequences();
}

// Adds the sequence's next token and its guesses, each as a part of its own: rows of one token are
// computed as in a step without guesses, by the same kernels. Where a compaction needs queries, the
// tokens before are computed again with the first one; those of the prompt are a part of their own,
// because other kernels may compute prompts.
void DecodeEngine::AddRows(DecodeSequence& sequence, std::vector<SequenceStep>& steps) {
  sequence.SetFirstPart();
  const auto add = [&](std::span<const uint32_t> tokens, size_t position, bool prompt) {
    steps.push_back({.tokens = tokens,
                     .position = static_cast<int32_t>(position),
                     .blocks = sequence.table,
                     .evicted = sequence.evicted,
                     .selection = sequence.Selection(),
                     .prompt = prompt,
                     .bytes_read = &sequence.session->bytes_read});
  };
  for (size_t row = 0; row <= sequence.guesses.size(); ++row) {
    const std::span<const uint32_t> tokens =
        row == 0 ? std::span<const uint32_t>(sequence.first_part)
                 : std::span<const uint32_t>(sequence.guesses).subspan(row - 1, 1);
    const size_t begin = static_cast<size_t>(sequence.position()) + row + 1 - tokens.size();
    const size_t of_prompt = std::max<size_t>(begin, sequence.session->prompt_tokens) - begin;
    const size_t again = std::min(of_prompt, tokens.size() - 1);
    if (again > 0) add(tokens.first(again), begin, /*prompt=*/true);
    add(tokens.subspan(again), begin + again, /*prompt=*/false);
    if (sequence.mtp != nullptr) steps.back().hidden = sequence.mtp->Row(row);
    const bool ranks = sequence.session->beams != nullptr;
    outputs_.Want(steps.back(), ranks ? std::vector<DrawSpec>()
                                      : sequence.sampler.OwnDraws(static_cast<int32_t>(row)));
  }
}

// Takes the tokens that the step gave the sequence: its next one, and one behind each guess while
// the guesses are right.
void DecodeEngine::Advance(DecodeSequence& sequence, size_t first_output) {
  if (sequence.session->beams != nullptr) return RankBeam(sequence, outputs_.at(first_output));
  std::vector<v1::TokenOut> tokens;
  bool next_is_right = true;
  for (size_t row = 0; next_is_right && row <= sequence.guesses.size(); ++row) {
    std::optional<v1::TokenOut> token = TakeToken(sequence, outputs_.at(first_output + row));
    if (!token) break;
    next_is_right = token->finish() == v1::TokenOut::GOING_ON && row < sequence.guesses.size() &&
                    sequence.guesses[row] == token->token();
    tokens.push_back(*std::move(token));
  }
  const bool finished = !tokens.empty() && tokens.back().finish() != v1::TokenOut::GOING_ON;
  TellTokens(sequence, std::move(tokens));
  if (finished) return Finish(sequence);
  if (!sequence.full()) sequence.scores.Clear();  // The guesses behind it were wrong.
  PassWindow(sequence);
  const absl::Status failure = sequence.sampler.failure();
  if (!failure.ok()) Fail(sequence.session->key, failure);
}

// Tells the sink the tokens of one step. All but the last were guessed right.
void DecodeEngine::TellTokens(DecodeSequence& sequence, std::vector<v1::TokenOut> tokens) {
  const uint32_t wrong = speculator_.CountChecked(sequence, tokens.size());
  if (tokens.empty()) return;
  tokens.back().set_rejected_guesses(wrong);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].set_more_in_step(static_cast<uint32_t>(tokens.size() - 1 - i));
    sequence.session->sink->OnToken(std::move(tokens[i]));
  }
}

// Samples the next token. Nullopt: the sampler has failed.
std::optional<v1::TokenOut> DecodeEngine::TakeToken(DecodeSequence& sequence,
                                                    const StepOutput& output) {
  const int32_t position = sequence.sampler.output_tokens();
  const SampledToken sampled = output.Sample(sequence.sampler);
  if (std::isnan(sampled.logprob)) return std::nullopt;
  const uint32_t attended = CountAttended(sequence);
  ++sequence.tokens_held;
  sequence.tail.push_back(sequence.last_token);
  sequence.last_token = sampled.id;
  if (sequence.draft != nullptr) sequence.draft->Observe(sampled.id);
  if (sequence.context != nullptr) sequence.context->Observe(sampled.id);
  if (sequence.mtp != nullptr) sequence.mtp->Observe(sampled.id);
  v1::TokenOut token = MakeTokenOut(sampled, sequence.choice, position, sequence.session->stop);
  token.set_attended_tokens(attended);
  token.set_kv_bytes_read(std::exchange(sequence.session->bytes_read, 0));
  return token;
}

// Counts the tokens that the sequence's last token attended to, and returns their number; 0: all.
uint32_t DecodeEngine::CountAttended(const DecodeSequence& sequence) {
  const PageSelection& selection = sequence.session->selection;
  const int32_t page = pool_.view().layout.block_tokens, position = sequence.position();
  if (!selection.Selects(position, page)) return 0;
  const int64_t attended = selection.Attended(position, page);
  selected_tokens_ += attended;
  selectable_tokens_ += position + 1;
  return static_cast<uint32_t>(attended);
}

void DecodeEngine::Finish(DecodeSequence& sequence) {
  DecodeSession& session = *sequence.session;
  if (--session.choices_open == 0) {
    const std::shared_ptr<DecodeSink> sink = session.sink;
    End(sequence.id);  // Blocks are free before the client sees the end of the answer.
    return sink->OnEnd(absl::OkStatus());
  }
  End(sequence.id);
}

void DecodeEngine::Fail(HandoffKey key, const absl::Status& status) {
  const std::vector<uint64_t> failed = running_.IdsOf(key);
  if (failed.empty()) return;
  const std::shared_ptr<DecodeSink> sink = running_.at(failed.front()).session->sink;
  for (const uint64_t id : failed) End(id, /*keep=*/false);  // Its KV may be damaged.
  sink->OnEnd(status);
}

void DecodeEngine::EndAll(const absl::Status& status) {
  RunningSequences::Map ended = running_.TakeAll();
  for (DecodeSequence& choice : preemption_.TakeAll()) ended.emplace(choice.id, std::move(choice));
  std::vector<DecodeJob> prompts = prefills_.TakeAll();
  CountSequences();
  for (DecodeJob& job : prompts) {
    const std::shared_ptr<DecodeSink> sink = job.sink;
    job = {};
    sink->OnEnd(status);
  }
  for (auto& [id, sequence] : ended) {
    if (--sequence.session->choices_open == 0) sequence.session->sink->OnEnd(status);
  }
}

}  // namespace penstock
