#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/grammar/grammar.h"
#include "model/sampler/token_constraint.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/inference.pb.h"
#include "tests/e2e/cluster/requests.h"

namespace penstock {

// Constraints as one process has them, without threads and caches.
class GrammarOracle {
 public:
  GrammarOracle(const std::string& model_folder, uint32_t vocab);

  // Makes `request` one whose answer follows `structured`.
  void Constrain(TestRequest& request, const v1::StructuredOutput& structured) const;
  // Every third request gets one of a few schemas, a regular expression, choices or a grammar.
  void ConstrainSome(std::vector<TestRequest>& requests) const;

 private:
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const std::unique_ptr<GrammarCompiler> compiler_;
  const std::vector<uint32_t> stops_;
  const uint32_t vocab_;
};

// A list of `least` or more numbers.
v1::StructuredOutput ManyNumbers(int least);

}  // namespace penstock
