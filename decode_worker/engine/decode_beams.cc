// DecodeEngine: beam search. The beams of a session are its sequences. Each is ranked by the step
// that computes it; when all are, the search takes a step and its beams are forked. So a batch may
// have some of them only, and other sequences beside them.

#include <utility>

#include "decode_worker/engine/beam_pages.h"
#include "decode_worker/engine/decode_engine.h"
#include "kvstore/cache/passed_blocks.h"

namespace penstock {
namespace {

// The candidates behind the prompt, as the prefill worker ranked them.
RankedTokens RankedOf(std::span<const v1::TokenOut> first) {
  RankedTokens ranked;
  for (const v1::TokenOut& token : first) {
    ranked.best.push_back(
        {.id = token.token(), .score = token.score(), .logprob = token.logprob()});
  }
  for (const v1::Alternative& other : first.front().top()) {
    ranked.top.push_back({.id = other.token(), .logprob = other.logprob()});
  }
  return ranked;
}

// The answers as the tokens of choices 0, 1, ..., the best answer first.
void TellAnswers(DecodeSession& session, int32_t block_tokens) {
  const PageSelection& selection = session.selection;
  uint32_t choice = 0;
  for (const BeamAnswer& answer : session.beams->TakeAnswers()) {
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const BeamToken& token = answer.tokens[i];
      v1::TokenOut out = MakeTokenOut({.id = token.id, .logprob = token.logprob, .top = token.top},
                                      choice, static_cast<int32_t>(i), session.stop);
      const int64_t before = selection.from + static_cast<int64_t>(i) - 1;
      if (selection.Selects(before, block_tokens)) {
        out.set_attended_tokens(static_cast<uint32_t>(selection.Attended(before, block_tokens)));
      }
      out.set_kv_bytes_read(std::exchange(session.bytes_read, 0));
      out.set_more_in_step(static_cast<uint32_t>(answer.tokens.size() - 1 - i));
      session.sink->OnToken(std::move(out));
    }
    ++choice;
  }
}

}  // namespace

void DecodeEngine::Search(DecodeJob job) {
  std::shared_ptr<DecodeSession> session = MakeSession(job);
  session->beams = std::make_unique<BeamSearch>(*job.beams);
  session->beams->Offer(0, RankedOf(job.first));
  const std::shared_ptr<DecodeSink> sink = session->sink;
  const absl::StatusOr<std::vector<BeamChild>> children = session->beams->Advance();
  if (!children.ok() || session->beams->ended()) {
    if (children.ok()) TellAnswers(*session, pool_.view().layout.block_tokens);
    job = {};
    session.reset();  // Blocks are free before the client sees the end of the answer.
    return sink->OnEnd(children.status());
  }
  std::vector<DecodeSequence> beams;
  beams.push_back(MakeSequence(session, job, 0, pool_.view().layout.block_tokens));
  const size_t passed = CountPassed(job.blocks);
  for (BlockRef& block : job.blocks) beams.front().Append(std::move(block));
  beams.front().PassBlocks(passed);
  beams = ForkBeams(std::move(beams), *children, pool_.view());
  session->choices_open = static_cast<int>(beams.size());
  for (DecodeSequence& beam : beams) beam.id = running_.NewId();
  Enter(std::move(beams));
}

// Takes the step's result of one beam, which then waits for the others.
void DecodeEngine::RankBeam(DecodeSequence& beam, const StepOutput& output) {
  const std::shared_ptr<DecodeSession> session = beam.session;
  BeamSearch& search = *session->beams;
  absl::StatusOr<RankedTokens> ranked =
      beam.sampler.Rank(output.logits, static_cast<size_t>(search.rules().candidates()));
  if (!ranked.ok()) return Fail(session->key, ranked.status());
  search.Offer(static_cast<int32_t>(beam.choice), *std::move(ranked));
  CountAttended(beam);
  running_.Rest(beam.id);
  if (search.complete()) StepBeams(session);
}

void DecodeEngine::StepBeams(const std::shared_ptr<DecodeSession>& session) {
  const absl::StatusOr<std::vector<BeamChild>> children = session->beams->Advance();
  if (!children.ok()) return Fail(session->key, children.status());
  if (session->beams->ended()) return EndSearch(*session);
  std::vector<DecodeSequence> beams = running_.Take(*session);
  std::vector<uint64_t> ids;
  for (DecodeSequence& beam : beams) {
    ++beam.tokens_held;
    beam.tail.push_back(beam.last_token);
    ids.push_back(beam.id);
  }
  beams = ForkBeams(std::move(beams), *children, pool_.view());
  for (size_t i = 0; i < beams.size(); ++i) beams[i].id = ids[i];
  Enter(std::move(beams));
  for (const uint64_t id : ids) PassWindow(running_.at(id));
}

void DecodeEngine::EndSearch(DecodeSession& session) {
  const std::shared_ptr<DecodeSink> sink = session.sink;
  TellAnswers(session, pool_.view().layout.block_tokens);
  for (DecodeSequence& beam : running_.Take(session)) Keep(beam);
  CountSequences();
  sink->OnEnd(absl::OkStatus());
}

}  // namespace penstock
