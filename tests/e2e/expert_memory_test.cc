// Experts that are in memory only in part: answers do not change, whatever the limit, and a file of
// experts that is damaged ends requests with an error, never with a wrong token.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/cluster/worker_metric.h"
#include "tests/e2e/models/expert_model.h"
#include "tests/support/open_files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

class ExpertMemoryTest : public testing::Test {
 protected:
  ExpertMemoryTest() { WriteExpertModel(model_.path()); }

  // An expert of this model takes 20 KiB in 16 bits; two layers have 8.
  Cluster::Options Workers(const std::string& expert_memory) const {
    const std::vector<std::string> flags = {"--expert_memory=" + expert_memory,
                                            "--expert_dir=" + experts_.path()};
    return {.model = model_.path(), .prefill_flags = flags, .decode_flags = flags};
  }

  LocalGenerator Local() const {
    return LocalGenerator({.model = model_.path(), .kv_memory = "256MiB", .threads = 1});
  }

  // The file of a worker's experts.
  std::string FileOf(const WorkerProcess& worker) const {
    const auto files = UnnamedFiles(std::to_string(worker.process.pid()), experts_.path());
    return files.size() == 1 ? files[0] : "";
  }

  const TempFolder model_;
  const TempFolder experts_;
};

void ExpectMetrics(const WorkerProcess& worker) {
  EXPECT_GT(MetricOf(worker, "penstock_expert_misses_total"), 0);
  EXPECT_GE(MetricOf(worker, "penstock_expert_hits_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_expert_read_bytes_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_expert_wait_seconds_total"), 0);
  EXPECT_EQ(MetricOf(worker, "penstock_expert_read_errors_total"), 0);
  EXPECT_GT(MetricOf(worker, "penstock_expert_resident_bytes"), 0);
  EXPECT_GE(MetricOf(worker, "penstock_expert_capacity_bytes"),
            MetricOf(worker, "penstock_expert_resident_bytes"));
  EXPECT_EQ(MetricOf(worker, "penstock_expert_file_bytes"), 16 * 20480);
}

TestAnswer AskOne(Cluster& cluster, const TestRequest& request) {
  Deadline context(std::chrono::minutes(2));
  return Ask(cluster.client(), ToProto(request), context);
}

TEST_F(ExpertMemoryTest, ChangesNoToken) {
  LocalGenerator local = Local();
  for (const char* memory : {"24KiB", "100KiB"}) {
    Cluster cluster(Workers(memory));
    for (const TestRequest& request : MakeRequests(8, 400, local.vocab(), 5)) {
      const TestAnswer answer = AskOne(cluster, request);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
      EXPECT_EQ(answer.tokens[0],
                local.Generate(request.prompt, request.sampling, request.tokens_max, 0));
    }
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
    ExpectMetrics(cluster.prefill()[0]);
    ExpectMetrics(cluster.decode()[0]);
  }
}

// Experts that are in memory stay usable; any other one is an error of its requests alone.
TEST_F(ExpertMemoryTest, ADamagedFileEndsRequestsWithAnError) {
  LocalGenerator local = Local();
  Cluster cluster(Workers("24KiB"));
  TestRequest request = MakeRequest(40, local.vocab(), 3, 24);
  ASSERT_TRUE(AskOne(cluster, request).status.ok());
  const std::string file = FileOf(cluster.decode()[0]);
  ASSERT_FALSE(file.empty());
  ASSERT_EQ(truncate(file.c_str(), 0), 0);
  const TestAnswer failed = AskOne(cluster, request);
  EXPECT_FALSE(failed.status.ok());
  EXPECT_THAT(failed.status.error_message(), HasSubstr("the file of experts"));
  EXPECT_TRUE(cluster.decode()[0].process.running());
  EXPECT_GT(MetricOf(cluster.decode()[0], "penstock_expert_read_errors_total"), 0);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
