// Workers of one host that share their weights: one file, mapped by both roles, also after one of
// them started again, and the tokens of workers that do not.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/expert_model.h"

namespace penstock {
namespace {

class SharedWeightsTest : public testing::Test {
 protected:
  SharedWeightsTest() { WriteExpertModel(model_.path()); }

  Cluster::Options Workers() const {
    const std::vector<std::string> flags = {"--weights=int4",
                                            "--packed_weights_dir=" + packed_.path()};
    return {.model = model_.path(), .prefill_flags = flags, .decode_flags = flags};
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(packed_.path())) {
      files.push_back(entry.path());
    }
    return files;
  }

  const TempFolder model_;
  const TempFolder packed_;
};

bool Maps(const WorkerProcess& worker, const std::string& path) {
  std::ifstream maps("/proc/" + std::to_string(worker.process.pid()) + "/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), {});
  return text.find(path) != std::string::npos;
}

TEST_F(SharedWeightsTest, AreOneFileAndChangeNoToken) {
  LocalGenerator local(
      {.model = model_.path(), .kv_memory = "256MiB", .weights = "int4", .threads = 1});
  for (int start = 0; start < 2; ++start) {  // the second time both find the file
    Cluster cluster(Workers());
    ASSERT_EQ(Files().size(), 1u);
    EXPECT_TRUE(Maps(cluster.prefill()[0], Files()[0]));
    EXPECT_TRUE(Maps(cluster.decode()[0], Files()[0]));
    for (const TestRequest& request : MakeRequests(6, 300, local.vocab(), 11)) {
      Deadline context(std::chrono::minutes(2));
      const TestAnswer answer = Ask(cluster.client(), ToProto(request), context);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
      EXPECT_EQ(answer.tokens[0],
                local.Generate(request.prompt, request.sampling, request.tokens_max, 0));
    }
  }
}

}  // namespace
}  // namespace penstock
