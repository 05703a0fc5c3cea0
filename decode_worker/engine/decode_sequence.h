#pragma once

#include <memory>
#include <vector>

#include "decode_worker/engine/decode_job.h"
#include "decode_worker/engine/freeze_queue.h"
#include "decode_worker/speculation/draft_context.h"
#include "decode_worker/speculation/draft_lengths.h"
#include "decode_worker/speculation/mtp_context.h"
#include "decode_worker/speculation/sequence_draft.h"
#include "worker/engine/kv_compaction.h"

namespace penstock {

// The common part of the choices of one session. Used by the engine thread only.
struct DecodeSession {
  HandoffKey key;
  PromptBlocks prompt;
  CacheAccess access;
  SamplingParams sampling;
  StopRule stop;
  BlockCredit growth;
  int64_t exchanges = 0;  // as in DecodeJob
  OwedBlocks owed;
  SwapReservation swap;
  std::shared_ptr<DecodeSink> sink;
  // Part of its KV is dropped, or will be: no cache gets any of it.
  std::optional<KvEviction> eviction;
  uint32_t prompt_tokens = 0;
  PageSelection selection = {};
  bool blended = false;  // as in DecodeJob
  // Not null: its sequences are the beams of a search, whose numbers are their choices.
  std::unique_ptr<BeamSearch> beams = nullptr;
  int choices_open = 0;
  int choices_frozen = 0;
  uint64_t bytes_read = 0;  // of KV, from the pages' file, since the last token was told
};

// One running choice of a session. Used by the engine thread only.
struct DecodeSequence {
  uint64_t id = 0;
  std::shared_ptr<DecodeSession> session;  // shared by its choices; gone with the last of them
  uint32_t choice = 0;
  Sampler sampler;
  std::vector<BlockRef> blocks;
  std::vector<uint32_t> table;                 // ids of `blocks`, as the runner wants them
  size_t passed = 0;                           // leading blocks that the window has passed
  size_t kept = 0;                             // leading blocks that were given to the cache
  int32_t tokens_held = 0;                     // whose KV is in the pages
  int32_t evicted = 0;                         // earlier tokens whose KV was dropped
  uint32_t last_token = 0;                     // sampled, its KV still to come
  std::vector<uint32_t> tail;                  // the tokens held behind the prompt's full blocks
  std::vector<HandoffKey> freezes;             // that are in effect
  std::vector<uint32_t> guesses;               // behind last_token, that the next step checks
  Drafter drafter = Drafter::kNgram;           // of these guesses
  std::unique_ptr<SequenceDraft> draft = {};   // null: no guesses from its own tokens
  std::unique_ptr<DraftContext> context = {};  // in the draft model; null: there is none
  std::unique_ptr<MtpContext> mtp = {};        // in the layer for MTP; null: no guesses of it

  std::vector<uint32_t> before_tail = {};  // the last tokens before `tail` that may be observed
  std::vector<uint32_t> first_part = {};   // of a step's rows: SetFirstPart
  CompactionScores scores = {};            // of the slots before last_token, if full()

  int32_t position() const { return tokens_held + evicted; }  // of last_token
  bool compacts() const { return session->eviction && session->eviction->EvictsAnswer(); }
  // True if the sequence must be compacted before its next step.
  bool full() const {
    return compacts() && tokens_held == static_cast<int32_t>(session->eviction->limit());
  }
  // The number of tokens whose queries a compaction observes.
  int32_t observed() const {
    return compacts() ? CompactionScores::Observed(*session->eviction) : 0;
  }
  // The number of guesses with which a step fills the sequence. Nullopt: it does not, or no queries
  // are observed.
  std::optional<int32_t> FillingGuess() const;
  // Sets `first_part` to last_token, behind those before it that the step computes again for their
  // queries: if it fills the sequence. Nothing was compacted since they were computed, so they see
  // the same slots, and their KV is written again with the same bits. (A prompt may go on behind
  // `prompt_tokens`, where an answer was computed again as a prompt. With numerics=fast those
  // tokens' last bits may differ.)
  void SetFirstPart();
  // The selection of a step's rows, in which all tokens behind last_token are guesses.
  PageSelection Selection() const;
  // True if the KV of `more` further tokens needs a further block.
  bool needs_block(int32_t block_tokens, int32_t more = 1) const;
  void Append(BlockRef block);
  // Returns the references to the blocks before `first`, which stay in `blocks` as empty ones.
  std::vector<BlockRef> PassBlocks(size_t first);
  // FAILED_PRECONDITION when this sequence has no KV for the request's tokens, or other tokens.
  absl::Status CheckFreeze(const FreezeRequest& request, const KvLayout& layout) const;
};

// A session whose KV has arrived, without sequences.
std::shared_ptr<DecodeSession> MakeSession(DecodeJob& job);

// A sequence of the session behind the job's tokens, without blocks and last token.
DecodeSequence MakeSequence(const std::shared_ptr<DecodeSession>& session, const DecodeJob& job,
                            uint32_t choice, int32_t block_tokens);

// Splits a session whose KV has arrived into its choices that go on after the first token. They
// share the full blocks; each but the first gets a copy of a partial one.
std::vector<DecodeSequence> ForkChoices(DecodeJob job, const PagedKv& kv);

}  // namespace penstock
