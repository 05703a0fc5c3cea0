#include "lab/eval/recall_question.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace penstock {
namespace {

using Tokens = std::vector<uint32_t>;

constexpr size_t kOthers = 3;
constexpr std::array<std::string_view, 16> kWords = {
    "amber", "river",  "stone",  "horse",  "table",  "garden", "window", "letter",
    "bread", "silver", "candle", "basket", "engine", "bottle", "ladder", "harbour"};

void Append(const Tokens& more, Tokens& tokens) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

class QuestionMaker {
 public:
  QuestionMaker(const Tokenizer& tokenizer, std::span<const uint32_t> text, std::mt19937_64& engine)
      : tokenizer_(tokenizer), text_(text), engine_(engine) {}

  absl::StatusOr<RecallQuestion> Make(RecallTask task, int32_t distance) {
    RETURN_IF_ERROR(task == RecallTask::kPassKey ? DrawPassKey() : DrawCodes());
    RecallQuestion question{.prompt = {}, .answer = number_};
    if (tokenizer_.bos_id()) question.prompt.push_back(*tokenizer_.bos_id());
    Append(Passage(16 + engine_() % 16), question.prompt);
    question.stated_at = question.prompt.size();
    Append(fact_, question.prompt);
    Append(Between(static_cast<size_t>(distance)), question.prompt);
    question.asked_at = question.prompt.size();
    Append(ask_, question.prompt);
    return question;
  }

 private:
  absl::StatusOr<Tokens> Encode(const std::string& text) const {
    return tokenizer_.Encode(text, {.add_special_tokens = false});
  }

  // "<before>12345<behind>"
  absl::StatusOr<Tokens> State(const Tokens& before, const Tokens& number,
                               const std::string& behind) const {
    Tokens fact = before;
    Append(number, fact);
    ASSIGN_OR_RETURN(const Tokens end, Encode(behind));
    Append(end, fact);
    return fact;
  }

  absl::Status DrawPassKey() {
    ASSIGN_OR_RETURN(number_, Encode(std::to_string(10000 + engine_() % 90000)));
    ASSIGN_OR_RETURN(const Tokens statement, Encode(" The pass key is "));
    ASSIGN_OR_RETURN(fact_, State(statement, number_, ". Remember it."));
    ASSIGN_OR_RETURN(ask_, Encode(" What is the pass key?"));
    Append(statement, ask_);
    return absl::OkStatus();
  }

  absl::Status DrawCodes() {
    std::array<std::string_view, kWords.size()> words = kWords;
    std::shuffle(words.begin(), words.end(), engine_);
    for (size_t i = 0; i <= kOthers; ++i) {
      ASSIGN_OR_RETURN(const Tokens number, Encode(std::to_string(1000 + engine_() % 9000)));
      ASSIGN_OR_RETURN(const Tokens statement,
                       Encode(" The code of " + std::string(words[i]) + " is "));
      ASSIGN_OR_RETURN(Tokens fact, State(statement, number, "."));
      if (i > 0) {
        others_.push_back(std::move(fact));
        continue;
      }
      number_ = number;
      ask_ = statement;
      fact_ = std::move(fact);
    }
    return absl::OkStatus();
  }

  Tokens Passage(size_t count) {
    const size_t at = engine_() % (text_.size() - count);
    const auto passage = text_.subspan(at, count);
    return {passage.begin(), passage.end()};
  }

  // Text with the other facts in it, as many as there is room for.
  Tokens Between(size_t distance) {
    size_t taken = fact_.size() + ask_.size();
    for (const Tokens& other : others_) taken += other.size();
    for (; taken > distance && !others_.empty(); others_.pop_back()) taken -= others_.back().size();
    const Tokens text = Passage(distance > taken ? distance - taken : 0);
    std::vector<size_t> cuts;
    for (size_t i = 0; i < others_.size(); ++i) cuts.push_back(engine_() % (text.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    Tokens between;
    size_t begin = 0;
    for (size_t i = 0; i < others_.size(); begin = cuts[i++]) {
      between.insert(between.end(), text.begin() + static_cast<long>(begin),
                     text.begin() + static_cast<long>(cuts[i]));
      Append(others_[i], between);
    }
    between.insert(between.end(), text.begin() + static_cast<long>(begin), text.end());
    return between;
  }

  const Tokenizer& tokenizer_;
  const std::span<const uint32_t> text_;
  std::mt19937_64& engine_;
  Tokens number_, fact_, ask_;
  std::vector<Tokens> others_;  // facts of other words
};

}  // namespace

absl::StatusOr<RecallQuestion> MakeRecallQuestion(RecallTask task, int32_t distance,
                                                  const Tokenizer& tokenizer,
                                                  std::span<const uint32_t> text,
                                                  std::mt19937_64& engine) {
  return QuestionMaker(tokenizer, text, engine).Make(task, distance);
}

}  // namespace penstock
