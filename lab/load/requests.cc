#include "lab/load/requests.h"

#include <array>
#include <cmath>
#include <string_view>

namespace penstock {
namespace {

constexpr std::array<std::string_view, 64> kWords = {
    "river",  "stone",   "light",   "water",    "house",  "green",    "winter", "paper",
    "music",  "table",   "under",   "where",    "people", "small",    "great",  "story",
    "north",  "south",   "bread",   "glass",    "first",  "night",    "garden", "horse",
    "cloud",  "field",   "early",   "quiet",    "heavy",  "round",    "silver", "window",
    "letter", "morning", "evening", "market",   "bridge", "mountain", "forest", "street",
    "summer", "number",  "answer",  "question", "world",  "voice",    "hand",   "ship",
    "sea",    "road",    "wind",    "fire",     "snow",   "bird",     "tree",   "door",
    "clock",  "king",    "child",   "friend",   "city",   "train",    "island", "book"};

// Ids of pieces that are nobody else's, and of beginnings that are shared.
constexpr uint64_t kOwnPieces = uint64_t{1} << 62;
constexpr uint64_t kSharedPieces = uint64_t{1} << 61;

template <class Take>
void ForEachToken(const LoadRequest& request, uint64_t seed, Take take) {
  for (const PromptPiece& piece : request.prompt) {
    for (uint32_t i = 0; i < piece.tokens; ++i) take(Mix(seed, piece.id, i));
  }
}

class SyntheticSource final : public RequestSource {
 public:
  explicit SyntheticSource(const SyntheticLoad& load) : load_(load), draw_(load.seed) {}

  std::optional<LoadRequest> Next() override {
    if (load_.requests != 0 && made_ == load_.requests) return std::nullopt;
    LoadRequest request{.at_s = now_s_};
    now_s_ += Gap();
    if (load_.shared_tokens > 0) {
      request.prompt.push_back({.id = kSharedPieces + draw_.Between(0, load_.prefixes - 1),
                                .tokens = load_.shared_tokens});
    }
    const uint32_t own = draw_.Between(load_.prompt_tokens.min, load_.prompt_tokens.max);
    request.prompt.push_back({.id = kOwnPieces + made_, .tokens = own});
    request.output_tokens = draw_.Between(load_.output_tokens.min, load_.output_tokens.max);
    ++made_;
    return request;
  }

 private:
  double Gap() {
    if (load_.rate <= 0 || std::isinf(load_.rate)) return 0;
    return draw_.Gamma(load_.burstiness) / (load_.rate * load_.burstiness);
  }

  const SyntheticLoad load_;
  Draw draw_;
  double now_s_ = 0;
  uint32_t made_ = 0;
};

class ListSource final : public RequestSource {
 public:
  explicit ListSource(std::deque<LoadRequest> requests) : requests_(std::move(requests)) {}

  std::optional<LoadRequest> Next() override {
    if (requests_.empty()) return std::nullopt;
    LoadRequest request = std::move(requests_.front());
    requests_.pop_front();
    return request;
  }

 private:
  std::deque<LoadRequest> requests_;
};

}  // namespace

uint32_t LoadRequest::prompt_tokens() const {
  uint32_t sum = 0;
  for (const PromptPiece& piece : prompt) sum += piece.tokens;
  return sum;
}

std::vector<uint32_t> PromptIds(const LoadRequest& request, const PromptAlphabet& alphabet) {
  std::vector<uint32_t> ids;
  ids.reserve(request.prompt_tokens());
  const uint64_t size = uint64_t{alphabet.last_id} - alphabet.first_id + 1;
  ForEachToken(request, alphabet.seed, [&](uint64_t mixed) {
    ids.push_back(alphabet.first_id + static_cast<uint32_t>(mixed % size));
  });
  return ids;
}

std::string PromptText(const LoadRequest& request, const PromptAlphabet& alphabet) {
  std::string text;
  ForEachToken(request, alphabet.seed, [&](uint64_t mixed) {
    if (!text.empty()) text += ' ';
    text += kWords[mixed % kWords.size()];
  });
  return text;
}

std::unique_ptr<RequestSource> MakeSyntheticSource(const SyntheticLoad& load) {
  return std::make_unique<SyntheticSource>(load);
}

std::unique_ptr<RequestSource> MakeListSource(std::deque<LoadRequest> requests) {
  return std::make_unique<ListSource>(std::move(requests));
}

}  // namespace penstock
