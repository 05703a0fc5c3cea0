#include "lab/eval/recall_question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

class RecallQuestionTest : public testing::Test {
 protected:
  RecallQuestionTest()
      : tokenizer_(Tokenizer::Load(SourceFolder() + "/models/penstock-tiny").value()) {
    std::iota(text_.begin(), text_.end(), 100u);
  }

  RecallQuestion Make(RecallTask task, int32_t distance) {
    return MakeRecallQuestion(task, distance, *tokenizer_, text_, engine_).value();
  }

  std::string Decode(std::span<const uint32_t> tokens) const {
    return tokenizer_->Decode(tokens, false);
  }

  const std::unique_ptr<const Tokenizer> tokenizer_;
  std::vector<uint32_t> text_ = std::vector<uint32_t>(1000);
  std::mt19937_64 engine_{1};
};

TEST_F(RecallQuestionTest, AsksForThePassKeyAtItsDistance) {
  const RecallQuestion question = Make(RecallTask::kPassKey, 256);
  const std::span<const uint32_t> prompt(question.prompt);
  const std::string number = Decode(question.answer);
  EXPECT_EQ(question.answer.size(), 5u) << "digits are tokens";
  EXPECT_EQ(prompt.size() - question.stated_at, 256u);
  EXPECT_THAT(Decode(prompt.subspan(question.stated_at)),
              StartsWith(" The pass key is " + number + ". Remember it."));
  EXPECT_EQ(Decode(prompt.subspan(question.asked_at)), " What is the pass key? The pass key is ");
}

TEST_F(RecallQuestionTest, AsksForTheCodeOfOneOfFourWords) {
  const RecallQuestion question = Make(RecallTask::kCode, 256);
  const std::span<const uint32_t> prompt(question.prompt);
  const std::string ask = Decode(prompt.subspan(question.asked_at));
  EXPECT_EQ(prompt.size() - question.stated_at, 256u);
  EXPECT_THAT(ask, EndsWith(" is "));
  EXPECT_THAT(Decode(prompt.subspan(question.stated_at)),
              StartsWith(ask + Decode(question.answer) + "."));
  const std::string between =
      Decode(prompt.subspan(question.stated_at, question.asked_at - question.stated_at));
  size_t stated = 0;
  for (size_t at = 0; (at = between.find(" The code of ", at)) != std::string::npos; ++at) ++stated;
  EXPECT_EQ(stated, 4u);
}

TEST_F(RecallQuestionTest, LeavesOutWordsThatHaveNoRoom) {
  const RecallQuestion question = Make(RecallTask::kCode, 30);
  EXPECT_EQ(question.prompt.size() - question.stated_at, 30u);
}

}  // namespace
}  // namespace penstock
