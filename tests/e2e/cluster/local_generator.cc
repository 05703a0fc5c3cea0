#include "tests/e2e/cluster/local_generator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/page_copier.h"
#include "prefill_worker/prompt_eviction.h"
#include "tests/support/must.h"
#include "worker/engine/page_selection.h"

namespace penstock {

LocalGenerator::LocalGenerator(const std::string& model_folder, const std::string& kv_format)
    : LocalGenerator({.model = model_folder,
                      .kv_memory = "256MiB",
                      .kv_format = kv_format,
                      .threads = 1,
                      .step_tokens = 2048}) {}

LocalGenerator::LocalGenerator(const ModelHost::Options& options)
    : host_(Must(ModelHost::Open(options))), logits_(vocab()) {
  if (auto calibration = KvCalibration::Load(options.model); calibration.ok()) {
    calibration_ = std::make_unique<KvCalibration>(*std::move(calibration));
  }
}

LocalGenerator::LocalGenerator(const ModelHost::Options& prefill, const ModelHost::Options& decode)
    : LocalGenerator(prefill) {
  decode_ = Must(ModelHost::Open(decode));
}

// All of it as one run, however a wire cuts it.
void LocalGenerator::Transcode(const KvCodecSpec& codec, std::span<const uint32_t> blocks) {
  const PagedKv& pages = host_->pool->view();
  PENSTOCK_CHECK(pages.copier == nullptr);
  const KvLayout& layout = pages.layout;
  const auto count = static_cast<uint32_t>(blocks.size());
  const KvRun run =
      WithProtectedBlocks(RunOf(layout, 0, count, 0, static_cast<uint16_t>(layout.layers)), count);
  const size_t block_bytes = layout.PayloadBytes();
  std::vector<std::byte> raw(run.RawBytes()), encoded(EncodedKvBound(run));
  for (size_t b = 0; b < count; ++b) {
    std::memcpy(raw.data() + b * block_bytes, pages.Block(blocks[b]), block_bytes);
  }
  const KvCodecContext context{.calibration = calibration_.get()};
  const size_t used = Must(EncodeKv(codec, run, context, raw, encoded));
  const absl::Status decoded = DecodeKv(codec, run, context, std::span(encoded).first(used), raw);
  PENSTOCK_CHECK(decoded.ok());
  for (size_t b = 0; b < count; ++b) {
    std::memcpy(pages.Block(blocks[b]), raw.data() + b * block_bytes, block_bytes);
  }
}

LocalGenerator::Held LocalGenerator::Hold(ModelHost& host, size_t tokens) {
  BlockCredit credit =
      Must(host.pool->Reserve(host.layout.BlocksFor(static_cast<int64_t>(tokens))));
  Held held{.host = &host, .blocks = credit.Take(credit.blocks()), .table = {}};
  for (const BlockRef& block : held.blocks) held.table.push_back(block.id());
  return held;
}

LocalGenerator::Held LocalGenerator::MovedToDecode(const Held& held) const {
  const PagedKv &from = held.host->pool->view(), &to = decode_->pool->view();
  PENSTOCK_CHECK(from.layout == to.layout);
  Held moved = Hold(*decode_, held.table.size() * static_cast<size_t>(from.layout.block_tokens));
  std::vector<std::byte> pages(held.table.size() * from.layout.PayloadBytes());
  ReadPages(from, held.table, 0, from.layout.PayloadBytes(), pages.data());
  WritePages(to, moved.table, 0, to.layout.PayloadBytes(), pages.data());
  return moved;
}

void LocalGenerator::Step(size_t prompt, std::span<const uint32_t> tokens, int32_t position,
                          const Held& held,
                          std::function<void(int32_t, View<const float, 2>)> on_queries,
                          std::span<float> hidden) {
  PageSelection selection = PageSelectionOf(SelectionOf(policy_), host_->layout.block_tokens,
                                            static_cast<uint32_t>(prompt));
  selection.checked = position + static_cast<int32_t>(tokens.size());
  const SequenceStep step{.tokens = tokens,
                          .position = position,
                          .blocks = held.table,
                          .evicted = held.evicted,
                          .selection = selection,
                          .prompt = static_cast<size_t>(position) < prompt,
                          .wants_logits = true,
                          .hidden = hidden};
  ModelRunner& runner = *held.host->runner;
  const absl::Status status = runner.Step({.sequences = std::span(&step, 1),
                                           .kv = held.host->pool->view(),
                                           .logits = {logits_.data(), {1, runner.vocab()}},
                                           .on_queries = std::move(on_queries)});
  PENSTOCK_CHECK(status.ok());
}

// Samples the answer's next token; true if it is the last one.
bool LocalGenerator::Answer(Sampler& sampler, const SamplingParams& params, int tokens_max,
                            std::vector<uint32_t>& answer) {
  answer.push_back(sampler.Sample(logits_).id);
  const auto& stops = params.stop_token_ids;
  return static_cast<int>(answer.size()) == tokens_max ||
         std::find(stops.begin(), stops.end(), answer.back()) != stops.end();
}

std::vector<float> LocalGenerator::HiddenState(std::span<const uint32_t> prompt) {
  std::vector<float> hidden(static_cast<size_t>(host_->runner->hidden_size()));
  Step(prompt.size(), prompt, 0, Hold(prompt.size()), {}, hidden);
  return hidden;
}

// The token at each position is a step of its own.
std::vector<float> LocalGenerator::MeanHiddenState(std::span<const uint32_t> prompt) {
  const Held held = Hold(prompt.size());
  std::vector<float> hidden(static_cast<size_t>(host_->runner->hidden_size()));
  std::vector<double> sum(hidden.size());
  for (size_t i = 0; i < prompt.size(); ++i) {
    Step(prompt.size(), prompt.subspan(i, 1), static_cast<int32_t>(i), held, {}, hidden);
    for (size_t j = 0; j < sum.size(); ++j) sum[j] += hidden[j];
  }
  const auto count = static_cast<double>(prompt.size());
  for (size_t j = 0; j < sum.size(); ++j) hidden[j] = static_cast<float>(sum[j] / count);
  return hidden;
}

std::vector<uint32_t> LocalGenerator::Generate(std::span<const uint32_t> prompt,
                                               const SamplingParams& params, int tokens_max,
                                               uint32_t choice, const KvCodecSpec& wire) {
  Held held = Hold(prompt.size() + static_cast<size_t>(tokens_max));
  Sampler sampler(params, choice, prompt);
  std::vector<uint32_t> answer;
  Step(prompt.size(), prompt, 0, held);
  while (!Answer(sampler, params, tokens_max, answer)) {
    if (answer.size() == 1 && wire.codec != KvCodec::kRaw) {
      const auto count = host_->layout.BlocksFor(static_cast<int64_t>(prompt.size()));
      Transcode(wire, std::span(held.table).first(static_cast<size_t>(count)));
    }
    if (answer.size() == 1 && decode_ != nullptr) held = MovedToDecode(held);
    const auto position = static_cast<int32_t>(prompt.size() + answer.size() - 1);
    Step(prompt.size(), std::span(&answer.back(), 1), position, held);
  }
  return answer;
}

std::vector<std::vector<uint32_t>> LocalGenerator::Search(std::span<const uint32_t> prompt,
                                                          const SamplingParams& params,
                                                          const BeamRules& rules) {
  struct Beam {
    Sampler sampler;
    std::vector<uint32_t> tokens;
  };
  BeamSearch search(rules);
  std::vector<Beam> beams;
  beams.push_back({Sampler(params, 0, prompt), {prompt.begin(), prompt.end()}});
  while (!search.ended()) {
    for (size_t i = 0; i < beams.size(); ++i) {
      Step(prompt.size(), beams[i].tokens, 0, Hold(beams[i].tokens.size()));
      const auto count = static_cast<size_t>(rules.candidates());
      search.Offer(static_cast<int32_t>(i), Must(beams[i].sampler.Rank(logits_, count)));
    }
    const std::vector<BeamChild> children = Must(search.Advance());
    std::vector<Beam> next;
    for (const BeamChild& child : children) {
      const Beam& parent = beams[static_cast<size_t>(child.parent)];
      next.push_back({parent.sampler.Fork(), parent.tokens});
      next.back().sampler.Observe(child.token);
      next.back().tokens.push_back(child.token);
    }
    beams = std::move(next);
  }
  std::vector<std::vector<uint32_t>> answers;
  for (const BeamAnswer& answer : search.TakeAnswers()) {
    std::vector<uint32_t>& ids = answers.emplace_back();
    for (const BeamToken& token : answer.tokens) ids.push_back(token.id);
  }
  return answers;
}

std::vector<uint32_t> LocalGenerator::GenerateEvicted(std::span<const uint32_t> prompt,
                                                      const SamplingParams& params, int tokens_max,
                                                      const std::string& policy, uint32_t choice) {
  const KvEviction rule = EvictionOf(policy).value();
  PromptEviction eviction(rule, prompt.size());
  const Held whole = Hold(prompt.size());
  Held rest = Hold(static_cast<size_t>(eviction.kept() + tokens_max) + rule.limit());
  rest.evicted = eviction.evicted();
  eviction.TakeBlocks(std::move(rest.blocks));
  const EvictionAttention attention = host_->runner->eviction_attention().value();
  Sampler sampler(params, choice, prompt);
  std::vector<uint32_t> answer;
  Step(prompt.size(), prompt, 0, whole, [&](int32_t layer, View<const float, 2> queries) {
    eviction.Observe(attention, host_->pool->view(),
                     {.layer = layer,
                      .end = static_cast<int32_t>(prompt.size()),
                      .whole = whole.table,
                      .kept = eviction.table(),
                      .queries = queries});
  });
  Queries queries;
  while (!Answer(sampler, params, tokens_max, answer)) {
    const auto position = static_cast<int32_t>(prompt.size() + answer.size() - 1);
    if (rule.EvictsAnswer() && position - rest.evicted == static_cast<int32_t>(rule.limit())) {
      rest = Compacted(rule, rest, std::exchange(queries, {}));
    }
    Step(prompt.size(), std::span(&answer.back(), 1), position, rest,
         [&](int32_t layer, View<const float, 2> row) {
           queries.width = row.dim(1);
           queries.layers.resize(std::max(queries.layers.size(), static_cast<size_t>(layer) + 1));
           std::vector<float>& rows = queries.layers[static_cast<size_t>(layer)];
           rows.insert(rows.end(), row.row(0), row.row(0) + row.dim(1));
         });
  }
  return answer;
}

// Of the queries as they were when their tokens were decoded, all at once.
CompactionScores LocalGenerator::Scores(const KvEviction& rule, const Held& full,
                                        const Queries& queries) {
  CompactionScores scores;
  const int32_t observed = CompactionScores::Observed(rule);
  if (observed == 0) return scores;
  for (int32_t layer = 0; layer < std::ssize(queries.layers); ++layer) {
    const std::vector<float>& rows = queries.layers[static_cast<size_t>(layer)];
    const int64_t first = std::ssize(rows) - observed * queries.width;
    PENSTOCK_CHECK_GE(first, 0);
    scores.Add(host_->runner->eviction_attention().value(), host_->pool->view(), rule,
               {.layer = layer,
                .blocks = full.table,
                .tokens = rule.limit(),
                .queries = {rows.data() + first, {observed, queries.width}}});
  }
  return scores;
}

// Into other pages, unlike the workers' compactions in place.
LocalGenerator::Held LocalGenerator::Compacted(const KvEviction& rule, const Held& full,
                                               const Queries& queries) {
  CompactionScores scores = Scores(rule, full, queries);
  Held kept = Hold(rule.limit());
  kept.evicted = full.evicted + static_cast<int32_t>(rule.slack_tokens);
  CompactKv(host_->runner->eviction_attention().value(), host_->pool->view(),
            {.eviction = rule,
             .evicted = full.evicted,
             .from = full.table,
             .to = kept.table,
             .scores = scores});
  return kept;
}

}  // namespace penstock
