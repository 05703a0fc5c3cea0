#include "lab/decoding/structured_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPartBytesMax = 14;
constexpr std::string_view kMarks = "{}[]\":,-.";
constexpr std::string_view kSpace = "\u0120";  // as byte-level vocabularies write it

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!(text << file.rdbuf())) return NotFound("cannot read {}", path);
  return text.str();
}

// Adds tokens with the next free ids until there are enough.
class Vocabulary {
 public:
  Vocabulary(Json& entries, uint32_t tokens, uint32_t next)
      : entries_(entries), tokens_(tokens), next_(next) {}
  bool full() const { return next_ == tokens_; }
  void Add(const std::string& token) {
    if (!full() && !entries_.contains(token)) entries_[token] = next_++;
  }

 private:
  Json& entries_;
  const uint32_t tokens_;
  uint32_t next_;
};

void AddNumbers(Vocabulary& vocabulary) {
  for (int i = 0; i < 100; ++i) vocabulary.Add(fmt::format("{:02}", i));
  for (int i = 0; i < 1000; ++i) vocabulary.Add(fmt::format("{:03}", i));
}

void AddMarks(Vocabulary& vocabulary) {
  for (const char a : kMarks) {
    vocabulary.Add(fmt::format("{}{}", kSpace, a));
    for (const char b : kMarks) {
      vocabulary.Add({a, b});
      vocabulary.Add(fmt::format("{}{}{}", a, kSpace, b));
      for (const char c : kMarks) vocabulary.Add({a, b, c});
    }
  }
}

// Beginnings, with and without the space before a word, and ends of the text's words.
void CountParts(const std::string& text, std::map<std::string, int64_t>& counts) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end])) != 0) ++end;
    const std::string word = text.substr(at, end - at);
    for (size_t begin = 0; begin < word.size(); ++begin) {
      for (size_t bytes = 2; bytes <= std::min(kPartBytesMax, word.size() - begin); ++bytes) {
        const std::string part = word.substr(begin, bytes);
        ++counts[part];
        if (begin == 0) ++counts[std::string(kSpace) + part];
      }
    }
    at = std::max(end, at + 1);
  }
}

std::vector<std::string> MostFrequent(const std::map<std::string, int64_t>& counts) {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [part, count] : counts) order.emplace_back(-count, part);
  std::sort(order.begin(), order.end());
  std::vector<std::string> parts;
  for (auto& [count, part] : order) parts.push_back(std::move(part));
  return parts;
}

void AddParts(const std::vector<std::string>& parts, Vocabulary& vocabulary) {
  for (const std::string& part : parts) vocabulary.Add(part);
  for (size_t sum = 0; sum < 2 * parts.size() && !vocabulary.full(); ++sum) {
    for (size_t i = sum < parts.size() ? 0 : sum - parts.size() + 1;
         i <= std::min(sum, parts.size() - 1); ++i) {
      if (!parts[sum - i].starts_with(kSpace)) vocabulary.Add(parts[i] + parts[sum - i]);
    }
  }
}

}  // namespace

absl::Status WriteVocabulary(const std::string& model, const std::vector<std::string>& texts,
                             uint32_t tokens, const std::string& dir) {
  ASSIGN_OR_RETURN(const std::string own, ReadText(model + "/tokenizer.json"));
  Json tokenizer = Json::parse(own, nullptr, /*allow_exceptions=*/false);
  if (!tokenizer.is_object()) return InvalidArgument("{}/tokenizer.json is not JSON", model);
  Json& entries = tokenizer["model"]["vocab"];
  uint32_t next = 0;
  for (const auto& entry : entries) next = std::max(next, entry.get<uint32_t>() + 1);
  for (const auto& added : tokenizer["added_tokens"]) {
    next = std::max(next, added["id"].get<uint32_t>() + 1);
  }
  if (next > tokens) {
    return InvalidArgument("--vocabulary is {}, and {} has {} tokens already", tokens, model, next);
  }
  Vocabulary vocabulary(entries, tokens, next);
  AddNumbers(vocabulary);
  AddMarks(vocabulary);
  std::map<std::string, int64_t> counts;
  for (const std::string& path : texts) {
    ASSIGN_OR_RETURN(const std::string text, ReadText(path));
    CountParts(text, counts);
  }
  AddParts(MostFrequent(counts), vocabulary);
  if (!vocabulary.full()) return InvalidArgument("--vocabulary is {}: too many", tokens);
  std::ofstream file(dir + "/tokenizer.json", std::ios::binary);
  if (!(file << tokenizer.dump()).flush()) return Internal("cannot write {}/tokenizer.json", dir);
  return absl::OkStatus();
}

}  // namespace penstock
