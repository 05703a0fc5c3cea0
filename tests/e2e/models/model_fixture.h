#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"

namespace penstock {

// A model that a test writes into a folder of its own, and the answers that one process gives with
// it: what workers answer is compared with those, token for token.
class ModelTest : public ::testing::Test {
 protected:
  const std::string& folder() const { return folder_.path(); }

  // Loads what the folder has, once it has been written. It keeps all KV.
  void Load(const std::string& weights = "checkpoint", const std::string& kv_format = "bf16");
  // The same on what `options` say, whose model is the folder's.
  void LoadOn(ModelHost::Options options);
  LocalGenerator& local() { return *local_; }

  // A request for exactly `tokens_max` tokens: no token ends the answer.
  TestRequest LongRequest(int prompt_tokens, int tokens_max, uint32_t seed);

  // Asks for an answer, which may take four minutes. `on_tokens` as of Ask.
  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr);
  // That the answer, with all its choices or beams, is that of the one process.
  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer);
  // Asks, and expects; twelve requests at a time, and afterwards no block is in use.
  void CheckAtOnce(Cluster& cluster, const std::vector<TestRequest>& requests);
  // The answer, of two choices, while its decode worker gets the signal behind `tokens` tokens.
  TestAnswer CheckDisturbed(Cluster& cluster, TestRequest request, int signal, size_t tokens);

 private:
  const TempFolder folder_;
  std::unique_ptr<LocalGenerator> local_;
};

}  // namespace penstock
