#include "lab/micro/index_load.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock {
namespace {

constexpr size_t kTemplates = 64;
constexpr size_t kUniversalBlocks = 32;
constexpr double kShortest = 8;
constexpr double kLongest = 512;

}  // namespace

IndexLoad::IndexLoad(const Options& options) : options_(options) {
  std::vector<BlockId> universal;
  for (size_t i = 0; i < kUniversalBlocks; ++i) universal.push_back(Fresh());
  for (size_t i = 0; i < kTemplates; ++i) {
    std::vector<BlockId>& path = templates_.emplace_back();
    if (options.universal_prompt) path = universal;
    const size_t more = options.universal_prompt ? 0 : kUniversalBlocks;
    for (size_t j = 0; j < more; ++j) path.push_back(Fresh());
  }
  for (uint64_t blocks = 0; blocks < options.blocks;) {
    chats_.push_back(NewChat());
    blocks += chats_.back().path.size() - chats_.back().shared;
  }
}

// Spread over all 16 bytes, as a hash would be.
BlockId IndexLoad::Fresh() {
  BlockId id;
  uint64_t halves[2] = {next_++ * 0x9E3779B97F4A7C15, random_()};
  std::memcpy(id.bytes.data(), halves, sizeof(halves));
  return id;
}

IndexLoad::Chat IndexLoad::NewChat() {
  std::uniform_real_distribution<double> log_length(std::log(kShortest), std::log(kLongest));
  const auto length = static_cast<size_t>(std::exp(log_length(random_)));
  const std::vector<BlockId>& trunk = templates_[random_() % kTemplates];
  Chat chat{.worker = static_cast<uint32_t>(random_() % kWorkers),
            .shared = std::min(trunk.size(), length - 1)};
  chat.path.assign(trunk.begin(), trunk.begin() + static_cast<std::ptrdiff_t>(chat.shared));
  while (chat.path.size() < length) chat.path.push_back(Fresh());
  return chat;
}

void IndexLoad::Fill(PrefixIndex& index) const {
  for (const Chat& chat : chats_) {
    index.Store(chat.worker, BlockTier::kDevice, nullptr, chat.path);
  }
}

// The blocks of a chat from `from` on.
void IndexLoad::Store(PrefixIndex& index, const Chat& chat, size_t from) const {
  const size_t per_event = options_.one_block_an_event ? 1 : chat.path.size();
  for (size_t i = from; i < chat.path.size(); i += per_event) {
    const std::span<const BlockId> rest = std::span(chat.path).subspan(i);
    index.Store(chat.worker, BlockTier::kDevice, i == 0 ? nullptr : &chat.path[i - 1],
                rest.first(std::min(rest.size(), per_event)));
  }
}

// The chat's last blocks, the last one first.
void IndexLoad::Remove(PrefixIndex& index, Chat& chat, size_t count) {
  std::vector<BlockId> gone(chat.path.rbegin(), chat.path.rbegin() + static_cast<ptrdiff_t>(count));
  const size_t per_event = options_.one_block_an_event ? 1 : gone.size();
  for (size_t i = 0; i < gone.size(); i += per_event) {
    index.Remove(chat.worker, std::span(gone).subspan(i, per_event));
  }
  chat.path.erase(chat.path.end() - static_cast<ptrdiff_t>(count), chat.path.end());
}

size_t IndexLoad::Step(PrefixIndex& index) {
  Chat& growing = chats_[random_() % chats_.size()];
  const size_t before = growing.path.size();
  const size_t turn = 1 + random_() % 32;
  for (size_t i = 0; i < turn; ++i) growing.path.push_back(Fresh());
  Store(index, growing, before);
  size_t blocks = 2 * turn;
  for (size_t left = turn; left > 0;) {
    Chat& oldest = chats_.front();
    const size_t own = std::min(left, oldest.path.size() - oldest.shared);
    Remove(index, oldest, own);
    left -= own;
    if (oldest.path.size() > oldest.shared) continue;
    chats_.pop_front();
    chats_.push_back(NewChat());
    Store(index, chats_.back(), 0);
    blocks += chats_.back().path.size();
  }
  return blocks;
}

std::vector<std::vector<BlockId>> IndexLoad::Prompts(size_t count) {
  std::vector<std::vector<BlockId>> prompts;
  for (size_t i = 0; i < count; ++i) {
    if (random_() % 10 < 7) {
      std::vector<BlockId> path = chats_[random_() % chats_.size()].path;
      for (size_t j = 1 + random_() % 16; j > 0; --j) path.push_back(Fresh());
      const auto max = static_cast<size_t>(kLongest);
      if (path.size() > max) path.erase(path.begin() + static_cast<ptrdiff_t>(max), path.end());
      prompts.push_back(std::move(path));
    } else {
      prompts.push_back(NewChat().path);
    }
  }
  return prompts;
}

}  // namespace penstock
