#include "prefill_worker/prefill_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/thread_name.h"
#include "kvstore/cache/passed_blocks.h"

namespace penstock {
namespace {

constexpr int64_t kSlabBytesMin = int64_t{256} << 10;

}  // namespace

int32_t LayersPerGroup(const KvLayout& layout, int32_t chunk_tokens) {
  const int64_t layer_bytes =
      layout.BlocksFor(chunk_tokens) * static_cast<int64_t>(layout.BytesOf(0, layout.Copies()));
  const auto wanted = static_cast<int32_t>((kSlabBytesMin + layer_bytes - 1) / layer_bytes);
  return std::clamp(wanted, 1, std::max(1, layout.layers / layout.Copies() / 2));
}

PrefillEngine::PrefillEngine(ModelRunner& runner, BlockPool& pool, KvCacheManager& cache,
                             KvSender& sender, const Clock& clock, Options options)
    : pool_(pool),
      cache_(cache),
      sender_(sender),
      clock_(clock),
      options_(options),
      mailbox_(std::make_shared<Mailbox<PrefillJob>>(options.max_waiting)),
      outputs_(runner),
      attention_(runner.eviction_attention()),
      rotations_(runner.key_rotations()),
      hidden_size_(runner.hidden_size()),
      fills_mtp_(runner.mtp() != nullptr) {}

PrefillEngine::~PrefillEngine() { Stop(); }

void PrefillEngine::Start() {
  thread_ = std::thread([this] {
    NameThisThread("engine-prefill");
    Run();
  });
}

void PrefillEngine::Stop() {
  mailbox_->Close();
  if (thread_.joinable()) thread_.join();
}

absl::Status PrefillEngine::Submit(PrefillJob job) {
  const auto tokens = static_cast<int64_t>(job.tokens.size());
  if (++prompts_here_ > static_cast<int64_t>(options_.max_waiting)) {
    --prompts_here_;
    return ResourceExhausted(
        "{} prompts wait here, and the limit (max_waiting) is {}; retry later or elsewhere",
        prompts_here_.load(), options_.max_waiting);
  }
  tokens_waiting_ += tokens;
  if (mailbox_->TryAdd(std::move(job))) return absl::OkStatus();
  --prompts_here_;
  tokens_waiting_ -= tokens;
  return Unavailable("the prefill worker is shutting down");
}

void PrefillEngine::Cancel(const HandoffKey& key) { mailbox_->Cancel(key); }

void PrefillEngine::Run() {
  bool worked = false;
  while (!mailbox_->closed()) {
    if (options_.progress != nullptr) options_.progress->Beat();
    TakeMail(worked ? Duration::zero() : options_.idle_beat);
    refused_ = false;
    const uint64_t freed = cache_.freed_count();
    worked = Step();
    // Restores and credits wake the engine by themselves.
    const bool waits = refused_ && !worked;
    room_wait_ = waits ? cache_.WhenFreed(freed, Waker()) : FreedWaiters::Wait();
  }
  room_wait_ = {};
  TakeMail(Duration::zero());
  const absl::Status status = Unavailable("the prefill worker is shutting down");
  while (!prompts_.empty()) Fail(prompts_.begin()->first, status);
}

std::function<void()> PrefillEngine::Waker() const {
  return [mailbox = mailbox_] { mailbox->Wake(); };
}

void PrefillEngine::TakeMail(Duration patience) {
  for (auto& item : mailbox_->Take(patience)) {
    if (PrefillJob* const job = std::get_if<PrefillJob>(&item)) {
      Accept(std::move(*job));
    } else {
      Drop(std::get<HandoffKey>(item));
    }
  }
}

void PrefillEngine::Accept(PrefillJob job) {
  const uint64_t id = next_id_++;
  std::unique_ptr<PromptEviction> eviction;
  if (job.eviction) {
    eviction = std::make_unique<PromptEviction>(*job.eviction, job.prompt_tokens);
  }
  std::unique_ptr<PromptBlend> blend;
  if (job.parts && !job.parts->parts.empty()) {
    blend = std::make_unique<PromptBlend>(*std::exchange(job.parts, std::nullopt));
  }
  Prompt& prompt = prompts_
                       .emplace(id, Prompt{.job = std::move(job),
                                           .blocks = {},
                                           .table = {},
                                           .eviction = std::move(eviction),
                                           .blend = std::move(blend)})
                       .first->second;
  if (prompt.job.hidden_mean) {
    prompt.hidden_sum.resize(static_cast<size_t>(hidden_size_));
  } else if (prompt.job.hidden_state) {
    prompt.hidden.resize(static_cast<size_t>(hidden_size_));
  }
  if (fills_mtp_) prompt.mtp_hidden.resize(static_cast<size_t>(hidden_size_));
  if (prompt.blend != nullptr) return blends_.push_back(id);  // It is scheduled with its parts.
  scheduler_.Add(ScheduledOf(id, prompt));
  if (prompt.job.admission) return;
  // Restores from a lower tier start before the prompt's turn.
  if (cache_.HasInLowerTier(prompt.job.prompt, prompt.job.CachedBlocksMax(pool_.view().layout)))
    Admit(prompt);
}

PrefillScheduler::Prompt PrefillEngine::ScheduledOf(uint64_t id, const Prompt& prompt) const {
  const PrefillJob& job = prompt.job;
  PrefillScheduler::Prompt scheduled{.id = id,
                                     .tokens = static_cast<int32_t>(job.tokens.size()),
                                     .arrival = job.arrival,
                                     .deadline = job.deadline,
                                     .scored = job.score_top.has_value()};
  if (prompt.eviction != nullptr) SetCuts(job, *prompt.eviction, scheduled);
  if (prompt.blend == nullptr) return scheduled;
  for (const BlendPiece& piece : std::as_const(*prompt.blend).pieces()) {
    scheduled.undivided.push_back({.begin = piece.begin, .end = piece.end});
  }
  return scheduled;
}

void PrefillEngine::Drop(const HandoffKey& key) {
  for (const auto& [id, prompt] : prompts_) {
    if (prompt.job.key == key) return Forget(id);
  }
}

void PrefillEngine::Forget(uint64_t id) {
  if (prompts_.at(id).blend != nullptr) DropParts(id);
  scheduler_.Remove(id);
  const bool counted = !prompts_.at(id).part_of;
  prompts_.erase(id);  // frees its blocks before it stops being counted
  tokens_waiting_ = scheduler_.tokens_waiting() + BlendsWaiting();
  if (counted) --prompts_here_;
}

void PrefillEngine::Fail(uint64_t id, const absl::Status& status) {
  if (const auto whole = prompts_.at(id).part_of) return Fail(*whole, status);
  const std::shared_ptr<PrefillSink> sink = prompts_.at(id).job.sink;
  Forget(id);
  sink->OnFailed(status);
}

bool PrefillEngine::Admit(Prompt& prompt) {
  const KvLayout layout = pool_.view().layout;
  const bool credited = sender_.credited(prompt.job.key);
  prompt.job.admission =
      cache_.Admit(prompt.job.prompt, {.held_max = prompt.job.CachedBlocksMax(layout),
                                       .blocks = prompt.job.Blocks(layout, options_.chunk_tokens),
                                       .exchanges = Exchanges(prompt),
                                       .rows = prompt.job.Rows(layout, options_.chunk_tokens),
                                       .left = credited ? 0 : options_.blocks_kept_for_credited,
                                       .rows_left = credited ? 0 : options_.rows_kept_for_credited,
                                       .on_restored = Waker()});
  if (!prompt.job.admission) {
    refused_ = true;
    return false;
  }
  if (prompt.begun == TimePoint()) prompt.begun = clock_.Now();
  return true;
}

std::optional<int32_t> PrefillEngine::Begin(uint64_t id) {
  Prompt& prompt = prompts_.at(id);
  const KvLayout layout = pool_.view().layout;
  if (!prompt.job.admission && !Admit(prompt)) return std::nullopt;
  if (!cache_.FinishRestore(prompt.job.prompt, prompt.job.admission)) return std::nullopt;
  if (!prompt.job.admission) {
    refused_ = true;
    return std::nullopt;
  }
  CacheAdmission admission = *std::exchange(prompt.job.admission, std::nullopt);
  if (prompt.job.peer) prompt.begun = clock_.Now();  // the wait for its prefix is not compute
  prompt.access = admission.access;
  prompt.blocks = std::move(admission.held);
  prompt.cached = static_cast<int32_t>(prompt.blocks.size()) * layout.block_tokens;
  prompt.passed = CountPassed(prompt.blocks);
  if (prompt.cached > 0 && prompt.eviction == nullptr && prompt.job.IsDecoded()) {
    sender_.SendLayers(prompt.job.key, {.first_layer = 0,
                                        .last_layer = layout.layers,
                                        .first_token = 0,
                                        .last_token = static_cast<uint32_t>(prompt.cached),
                                        .blocks = prompt.blocks});
  }
  prompt.credit = std::move(admission.credit);
  std::vector<BlockRef> fresh;
  if (!Exchanges(prompt)) {  // Otherwise it takes the blocks of a chunk when it computes it.
    const int64_t all = prompt.job.Blocks(layout, options_.chunk_tokens);
    fresh = prompt.credit.Take(all - std::ssize(prompt.blocks));
  }
  if (prompt.eviction != nullptr) {
    const auto own =
        static_cast<std::ptrdiff_t>(layout.BlocksFor(prompt.eviction->prompt_tokens()) -
                                    static_cast<int64_t>(prompt.blocks.size()));
    prompt.eviction->TakeBlocks(
        {std::make_move_iterator(fresh.begin() + own), std::make_move_iterator(fresh.end())});
    fresh.erase(fresh.begin() + own, fresh.end());
  }
  for (BlockRef& block : fresh) prompt.blocks.push_back(std::move(block));
  for (const BlockRef& block : prompt.blocks) prompt.table.push_back(block.id());
  if (prompt.passed > 0) TakePassed(prompt.blocks, prompt.table, prompt.passed);
  if (prompt.blend != nullptr) prompt.blend->Move(*rotations_, pool_.view(), prompt.table);
  return prompt.cached;
}

bool PrefillEngine::Step() {
  int32_t budget = options_.chunk_tokens;
  if (options_.random_chunks) budget = 1 + static_cast<int32_t>(random_() % budget);
  AdvanceBlends();
  const auto begin = [this](uint64_t id) { return Begin(id); };
  const auto room = [this](uint64_t id, int32_t first, int32_t tokens) {
    return MakeRoom(id, first, tokens);
  };
  std::vector<PrefillChunk> chunks = scheduler_.Next(budget, begin, room);
  // A random step may be too short for what must be in one.
  if (chunks.empty() && options_.random_chunks) {
    chunks = scheduler_.Next(options_.chunk_tokens, begin, room);
  }
  if (chunks.empty()) return false;
  const absl::Status status = Compute(chunks);
  ++steps_;
  size_t output = 0;
  for (const PrefillChunk& chunk : chunks) {
    const size_t first_output = output;
    output += static_cast<size_t>(ScoredRows(chunk)) + (WantsFirst(chunk) ? 1 : 0);
    const absl::Status sent = status.ok() ? SendScores(chunk, first_output) : status;
    if (!sent.ok()) {
      Fail(chunk.prompt, sent);
      continue;
    }
    CacheFullBlocks(chunk);
    PassRows(chunk);
    Compact(chunk);
    if (!EndsPrompt(chunk)) {
      PassWindow(chunk);
      continue;
    }
    if (prompts_.at(chunk.prompt).part_of) {
      TakePart(chunk.prompt);
      continue;
    }
    Finish(prompts_.at(chunk.prompt), outputs_.at(output - 1));
    Forget(chunk.prompt);
  }
  tokens_waiting_ = scheduler_.tokens_waiting() + BlendsWaiting();
  return true;
}

void PrefillEngine::CacheFullBlocks(const PrefillChunk& chunk) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  const int32_t block_tokens = pool_.view().layout.block_tokens;
  // What follows an eviction is computed from what it left, so no exact request may find it.
  if (prompt.eviction != nullptr && chunk.begin >= prompt.eviction->prompt_tokens()) return;
  // Blocks behind those that have names have KV of tokens that selected.
  const size_t full = std::min(static_cast<size_t>((chunk.begin + chunk.tokens) / block_tokens),
                               prompt.job.prompt.ids.size());
  if (full <= static_cast<size_t>(chunk.begin / block_tokens)) return;
  cache_.Insert(prompt.access, prompt.job.prompt, std::span(prompt.blocks).first(full));
  for (size_t i = prompt.passed; i < full; ++i) prompt.table[i] = prompt.blocks[i].id();
}

absl::Status PrefillEngine::Compute(std::span<const PrefillChunk> chunks) {
  std::vector<SequenceStep> steps;
  int64_t tokens = 0;
  for (const PrefillChunk& chunk : chunks) {
    AddSteps(chunk, steps);
    tokens += chunk.tokens;
  }
  for (const PrefillChunk& chunk : chunks) AddBlended(chunk, steps);
  const std::vector<RowRange> observed = ObservedRows(chunks);
  const std::function<void(int32_t, View<const float, 2>)> on_queries =
      [&](int32_t layer, View<const float, 2> queries) { ObserveLayer(chunks, layer, queries); };
  const TimePoint start = clock_.Now();
  absl::Status status = outputs_.Run(
      {.sequences = steps,
       .kv = pool_.view(),
       .logits = {},
       .on_layers_done = [&](int32_t first, int32_t last) { SendLayers(chunks, first, last); },
       .layers_per_group = options_.layers_per_group,
       .on_queries = observed.empty() ? nullptr : on_queries,
       .observed = observed});
  const Duration step = clock_.Now() - start;
  CountCompute(chunks, step / tokens);
  MeasureTokenTime(step / tokens);
  return status;
}

bool PrefillEngine::EndsPrompt(const PrefillChunk& chunk) const {
  const Prompt& prompt = prompts_.at(chunk.prompt);
  return chunk.begin + chunk.tokens == static_cast<int32_t>(prompt.job.tokens.size());
}

bool PrefillEngine::WantsFirst(const PrefillChunk& chunk) const {
  return EndsPrompt(chunk) && !prompts_.at(chunk.prompt).part_of;
}

// The number of the chunk's tokens, from its first on, whose logits score the token behind them.
int32_t PrefillEngine::ScoredRows(const PrefillChunk& chunk) const {
  const PrefillJob& job = prompts_.at(chunk.prompt).job;
  if (!job.score_top) return 0;
  const int32_t end = chunk.begin + chunk.tokens;
  return std::max(0, std::min(end, static_cast<int32_t>(job.prompt_tokens) - 1) - chunk.begin);
}

// A step gives the logits of its last token, so each token with a score is a step of its own. They
// are in one batch: in every layer all keys and values are written before any are read.
void PrefillEngine::AddSteps(const PrefillChunk& chunk, std::vector<SequenceStep>& steps) {
  Prompt& prompt = prompts_.at(chunk.prompt);
  const PromptEviction* eviction = prompt.eviction.get();
  const bool behind = eviction != nullptr && chunk.begin >= eviction->prompt_tokens();
  PageSelection selection = prompt.job.selection;
  selection.checked = chunk.begin + chunk.tokens;
  const auto add = [&](int32_t begin, int32_t tokens) -> SequenceStep& {
    return steps.emplace_back(
        SequenceStep{.tokens = std::span(prompt.job.tokens).subspan(begin, tokens),
                     .position = begin,
                     .blocks = behind ? eviction->table() : std::span(std::as_const(prompt.table)),
                     .evicted = behind ? eviction->EvictedAt(begin) : 0,
                     .selection = selection,
                     .prompt = true,
                     .hidden_sum = prompt.hidden_sum,
                     .fills_mtp = fills_mtp_ && !behind,
                     .before = prompt.mtp_hidden});
  };
  const int32_t scored = ScoredRows(chunk);
  for (int32_t i = 0; i < scored; ++i) outputs_.Want(add(chunk.begin + i, 1), {});
  if (prompt.blend != nullptr) {
    const std::vector<PrefillChunk> runs = PlainRuns(chunk);
    for (const PrefillChunk& run : runs) add(run.begin, run.tokens);
    if (runs.empty()) return;
  } else if (scored < chunk.tokens) {
    add(chunk.begin + scored, chunk.tokens - scored);
  }
  SequenceStep& last = steps.back();
  if (last.fills_mtp) last.hidden = prompt.mtp_hidden;
  if (!WantsFirst(chunk)) return;
  outputs_.Want(last, FirstDraws(FirstOf(prompt.job)));
  if (!prompt.hidden.empty()) last.hidden = prompt.hidden;
}

void PrefillEngine::SendLayers(std::span<const PrefillChunk> chunks, int32_t first_layer,
                               int32_t last_layer) {
  for (const PrefillChunk& chunk : chunks) {
    const Prompt& prompt = prompts_.at(chunk.prompt);
    if (prompt.eviction != nullptr) {
      SendEvicted(chunk, first_layer, last_layer);
      continue;
    }
    if (!prompt.job.IsDecoded()) continue;
    sender_.SendLayers(prompt.job.key,
                       {.first_layer = first_layer,
                        .last_layer = last_layer,
                        .first_token = static_cast<uint32_t>(chunk.begin),
                        .last_token = static_cast<uint32_t>(chunk.begin + chunk.tokens),
                        .blocks = prompt.blocks});
  }
}

absl::Status PrefillEngine::SendScores(const PrefillChunk& chunk, size_t first_output) {
  const int32_t rows = ScoredRows(chunk);
  if (rows == 0) return absl::OkStatus();
  const PrefillJob& job = prompts_.at(chunk.prompt).job;
  v1::PromptScores scores;
  scores.set_first_position(static_cast<uint32_t>(chunk.begin) + 1);
  for (int32_t i = 0; i < rows; ++i) {
    const TokenScore score = ScoreToken(outputs_.at(first_output + static_cast<size_t>(i)).logits,
                                        job.tokens[chunk.begin + i + 1], *job.score_top);
    if (std::isnan(score.logprob)) return LogitsNotFinite();
    v1::TokenScore& sent = *scores.add_tokens();
    sent.set_logprob(score.logprob);
    sent.set_rank(score.rank);
    for (const TokenLogprob& token : score.top) *sent.add_top() = AlternativeOf(token);
  }
  job.sink->OnScores(std::move(scores));
  return absl::OkStatus();
}

void PrefillEngine::SendHiddenState(const Prompt& prompt) {
  if (!prompt.job.hidden_state) return;
  v1::HiddenState state;
  state.mutable_values()->Assign(prompt.hidden.begin(), prompt.hidden.end());
  state.set_mean(prompt.job.hidden_mean);
  const auto tokens = static_cast<double>(prompt.job.tokens.size());
  for (const double sum : prompt.hidden_sum) state.add_values(static_cast<float>(sum / tokens));
  prompt.job.sink->OnHiddenState(std::move(state));
}

FirstTokensArgs PrefillEngine::FirstOf(const PrefillJob& job) {
  return {.sampling = job.sampling,
          .stop = job.stop,
          .tokens = job.tokens,
          .prompt_tokens = job.prompt_tokens,
          .first_choice = job.first_choice,
          .choices = job.choices,
          .candidates = job.candidates};
}

void PrefillEngine::Finish(Prompt& prompt, const StepOutput& output) {
  const PrefillJob& job = prompt.job;
  absl::StatusOr<v1::FirstTokens> first = MakeFirstTokens(
      FirstOf(job),
      {.arrival = job.arrival, .begun = prompt.begun, .end = clock_.Now(), .cached = prompt.cached},
      output);
  if (!first.ok()) return job.sink->OnFailed(first.status());
  first->set_compute_ms(Milliseconds(prompt.compute));
  if (job.peer) *first->mutable_peer() = *job.peer;
  if (prompt.eviction != nullptr) {
    first->set_evicted_tokens(static_cast<uint32_t>(prompt.eviction->evicted()));
    evicted_tokens_ += prompt.eviction->evicted();
  }
  if (prompt.blend != nullptr) ReportBlend(prompt, *first);
  first->set_pinned_tokens(static_cast<uint32_t>(cache_.Pin(job.prompt, job.pins)));
  std::vector<v1::TokenOut> tokens(first->tokens().begin(), first->tokens().end());
  const bool decode_follows = std::any_of(tokens.begin(), tokens.end(), [](const auto& token) {
    return token.finish() == v1::TokenOut::GOING_ON;
  });
  SendHiddenState(prompt);
  // The client first: Finish leads to Committed, which may end the call.
  job.sink->OnFirst(*std::move(first), decode_follows);
  if (decode_follows) sender_.Finish(job.key, std::move(tokens));
}

void PrefillEngine::CountCompute(std::span<const PrefillChunk> chunks, Duration per_token) {
  for (const PrefillChunk& chunk : chunks) {
    prompts_.at(chunk.prompt).compute += per_token * chunk.tokens;
  }
}

void PrefillEngine::MeasureTokenTime(Duration measured) {
  token_time_ = token_time_ == Duration::zero() ? measured : (token_time_ * 7 + measured) / 8;
  scheduler_.SetTokenTime(token_time_);
}

}  // namespace penstock
