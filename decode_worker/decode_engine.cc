#include "decode_worker/decode_engine.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(200);

}  // namespace

DecodeEngine::DecodeEngine(ModelRunner& runner, BlockPool& pool, WorkerCache& cache,
                           Options options)
    : runner_(runner),
      pool_(pool),
      cache_(cache),
      options_(options),
      mailbox_(options.sessions_max),
      scheduler_(options.batch_max) {
  logits_.resize(options.batch_max * static_cast<size_t>(runner.vocab()));
}

DecodeEngine::~DecodeEngine() { Stop(); }

void DecodeEngine::Start() {
  thread_ = std::thread([this] {
    NameThisThread("engine");
    Run();
  });
}

void DecodeEngine::Stop() {
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
}

void DecodeEngine::Add(DecodeJob job) {
  const std::shared_ptr<DecodeSink> sink = job.sink;
  if (mailbox_.TryAdd(std::move(job))) return;
  PENSTOCK_CHECK(mailbox_.closed());
  sink->OnEnd(Unavailable("the decode worker is shutting down"));
}

void DecodeEngine::Cancel(const HandoffKey& key) { mailbox_.Cancel(key); }

void DecodeEngine::Run() {
  while (!mailbox_.closed()) {
    if (options_.progress != nullptr) options_.progress->Beat();
    TakeMail();
    if (!sequences_.empty()) Step();
  }
  TakeMail();
  EndAll(Unavailable("the decode worker is shutting down"));
}

void DecodeEngine::TakeMail() {
  const bool idle = sequences_.empty() && !mailbox_.closed();
  Mailbox<DecodeJob>::Mail mail = mailbox_.Take(idle ? Duration(kIdleWait) : Duration::zero());
  for (DecodeJob& job : mail.jobs) Begin(std::move(job));
  for (const HandoffKey& key : mail.cancels) Drop(key);
}

void DecodeEngine::Begin(DecodeJob job) {
  const std::shared_ptr<DecodeSink> sink = job.sink;
  cache_.Insert(job.access, job.prompt.root, job.prompt.ids,
                std::span(job.blocks).first(job.prompt.ids.size()));
  std::vector<DecodeSequence> choices = ForkChoices(std::move(job), pool_.view());
  if (choices.empty()) return sink->OnEnd(absl::OkStatus());
  for (DecodeSequence& sequence : choices) {
    sequence.id = next_id_++;
    scheduler_.Add(sequence.id);
    sequences_.emplace(sequence.id, std::move(sequence));
  }
  running_ = static_cast<int64_t>(sequences_.size());
}

void DecodeEngine::Drop(const HandoffKey& key) {
  std::vector<uint64_t> dropped;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session->key == key) dropped.push_back(id);
  }
  for (const uint64_t id : dropped) End(id);
}

void DecodeEngine::Keep(DecodeSequence& sequence) {
  const PromptBlocks& prompt = sequence.session->prompt;
  std::vector<BlockId> ids = prompt.ids;
  const BlockId& parent = ids.empty() ? prompt.root : ids.back();
  const std::vector<BlockId> more = cache_.NameMore(parent, sequence.tail);
  ids.insert(ids.end(), more.begin(), more.end());
  cache_.Insert(sequence.session->access, prompt.root, ids,
                std::span(sequence.blocks).first(ids.size()));
}

void DecodeEngine::End(uint64_t id, bool keep) {
  scheduler_.Remove(id);
  if (keep) Keep(sequences_.at(id));
  sequences_.erase(id);
  running_ = static_cast<int64_t>(sequences_.size());
}

void DecodeEngine::Step() {
  const std::vector<uint64_t> batch = scheduler_.Next();
  std::vector<SequenceStep> steps;
  for (const uint64_t id : batch) {
    DecodeSequence& sequence = sequences_.at(id);
    sequence.Grow(pool_.view().layout.block_tokens);
    steps.push_back({.tokens = std::span(&sequence.last_token, 1),
                     .position = sequence.tokens_held,
                     .blocks = sequence.table,
                     .wants_logits = true});
  }
  const auto rows = static_cast<int64_t>(batch.size());
  const auto vocab = static_cast<size_t>(runner_.vocab());
  const absl::Status status = runner_.Step({.sequences = steps,
                                            .kv = pool_.view(),
                                            .logits = {logits_.data(), {rows, runner_.vocab()}},
                                            .on_layers_done = {},
                                            .layers_per_group = 0});
  ++steps_;
  if (!status.ok()) return EndAll(status);
  for (size_t row = 0; row < batch.size(); ++row) {
    // A choice earlier in the batch may have ended the session.
    const auto sequence = sequences_.find(batch[row]);
    if (sequence == sequences_.end()) continue;
    Advance(sequence->second, std::span(logits_).subspan(row * vocab, vocab));
  }
}

void DecodeEngine::Advance(DecodeSequence& sequence, std::span<float> logits) {
  DecodeSession& session = *sequence.session;
  const int32_t position = sequence.sampler.output_tokens();
  const SampledToken sampled = sequence.sampler.Sample(logits);
  if (std::isnan(sampled.logprob)) return Fail(session.key, LogitsNotFinite());
  ++sequence.tokens_held;
  sequence.tail.push_back(sequence.last_token);
  sequence.last_token = sampled.id;
  v1::TokenOut out = MakeTokenOut(sampled, sequence.choice, position, session.stop);
  const bool finished = out.finish() != v1::TokenOut::GOING_ON;
  session.sink->OnToken(std::move(out));
  if (!finished) return;
  if (--session.choices_open == 0) {
    const std::shared_ptr<DecodeSink> sink = session.sink;
    End(sequence.id);  // Blocks are free before the client can know that the answer is whole.
    return sink->OnEnd(absl::OkStatus());
  }
  End(sequence.id);
}

void DecodeEngine::Fail(HandoffKey key, const absl::Status& status) {
  std::shared_ptr<DecodeSink> sink;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session->key == key) sink = sequence.session->sink;
  }
  std::vector<uint64_t> failed;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session->key == key) failed.push_back(id);
  }
  for (const uint64_t id : failed) End(id, /*keep=*/false);  // Its KV is doubtful.
  if (sink != nullptr) sink->OnEnd(status);
}

void DecodeEngine::EndAll(const absl::Status& status) {
  std::map<uint64_t, DecodeSequence> ended = std::move(sequences_);
  sequences_.clear();
  running_ = 0;
  for (auto& [id, sequence] : ended) {
    scheduler_.Remove(id);
    if (--sequence.session->choices_open == 0) sequence.session->sink->OnEnd(status);
  }
}

}  // namespace penstock
