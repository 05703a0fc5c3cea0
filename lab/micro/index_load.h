#pragma once

#include <deque>
#include <random>
#include <span>
#include <vector>

#include "router/index/prefix_index.h"

namespace penstock {

// The caches of a fleet, as the index sees them: conversations of 8 to 512 blocks (as many short as
// long ones, by the logarithm), each behind one of 64 templates and on one worker. Chats leave, the
// oldest first and from their ends, as new turns come. One thread.
class IndexLoad {
 public:
  static constexpr uint32_t kWorkers = 64;

  struct Options {
    uint64_t blocks = 1'000'000;
    bool one_block_an_event = false;  // in Step, as decoding makes them
    bool universal_prompt = false;  // 32 blocks, the same for everyone, in place of the first ones
  };
  explicit IndexLoad(const Options& options);

  // Stores everything.
  void Fill(PrefixIndex& index) const;
  // A batch of events of one worker, as a busy fleet makes them: a turn is stored, and as many of
  // the oldest blocks are removed. Returns how many blocks that is.
  size_t Step(PrefixIndex& index);
  // Prompts to look up: chats with another turn of 1 to 16 blocks (7 of 10) or new ones.
  std::vector<std::vector<BlockId>> Prompts(size_t count);

 private:
  struct Chat {
    uint32_t worker;
    size_t shared;  // leading blocks that are others' as well
    std::vector<BlockId> path;
  };
  void Store(PrefixIndex& index, const Chat& chat, size_t from) const;
  void Remove(PrefixIndex& index, Chat& chat, size_t count);
  BlockId Fresh();
  Chat NewChat();

  const Options options_;
  std::mt19937_64 random_{1};
  uint64_t next_ = 1;
  std::vector<std::vector<BlockId>> templates_;
  std::deque<Chat> chats_;  // oldest first
};

}  // namespace penstock
