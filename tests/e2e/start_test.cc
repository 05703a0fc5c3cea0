// A user's mistakes at the start of a process: one clear line, the exit code by convention, and no
// process left running.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

class StartTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { fs::copy(ModelFolder(), model_); }

  // Runs the worker of the parameter's role and returns its exit code and last words.
  void ExpectRefusal(std::vector<std::string> flags, int exit_code, const std::string& words) {
    const std::string log = folder_.path() + "/log";
    std::vector<std::string> command = {"penstock-" + GetParam(), "--listen=127.0.0.1:0"};
    command.insert(command.end(), flags.begin(), flags.end());
    Process process(command, log);
    EXPECT_EQ(process.Wait(seconds(60)), exit_code) << process.Log();
    EXPECT_NE(process.Log().find(words), std::string::npos) << process.Log();
  }

  void Truncate(const std::string& file, uint64_t bytes) {
    fs::permissions(model_ + "/" + file, fs::perms::owner_write, fs::perm_options::add);
    fs::resize_file(model_ + "/" + file, bytes);
  }

  void Write(const std::string& file, const std::string& text) {
    fs::remove(model_ + "/" + file);
    std::ofstream(model_ + "/" + file) << text;
  }

  TempFolder folder_;
  const std::string model_ = folder_.path() + "/model";
};

TEST_P(StartTest, NoModel) { ExpectRefusal({"--model=/nowhere/at-all"}, 66, "/nowhere/at-all"); }

TEST_P(StartTest, ModelIsNeeded) { ExpectRefusal({}, 64, "model"); }

TEST_P(StartTest, UnknownFlag) {
  ExpectRefusal({"--modell=" + model_}, 64, "did you mean --model");
}

TEST_P(StartTest, PortInUse) {
  Cluster cluster({});
  ExpectRefusal({"--model=" + model_, "--listen=" + cluster.endpoint()}, 71, "port");
}

TEST_P(StartTest, OpenPortWithoutCredentials) {
  ExpectRefusal({"--model=" + model_, "--listen=0.0.0.0:0"}, 78, "insecure");
}

TEST_P(StartTest, CertificateWithoutItsKey) {
  ExpectRefusal({"--model=" + model_, "--cluster_cert=" + model_ + "/config.json"}, 78,
                "cluster_key is missing; set cluster_cert, cluster_key and cluster_ca together");
}

TEST_P(StartTest, NoCertificate) {
  ExpectRefusal({"--model=" + model_, "--cluster_cert=/nowhere", "--cluster_key=/nowhere",
                 "--cluster_ca=/nowhere"},
                66, "cluster_cert=/nowhere");
}

TEST_P(StartTest, MalformedConfig) {
  Write("config.json", "{\"architectures\": [\"LlamaForCausalLM\"");
  ExpectRefusal({"--model=" + model_}, 65, "config.json");
}

TEST_P(StartTest, UnknownArchitecture) {
  Write("config.json", "{\"architectures\": [\"MambaForCausalLM\"], \"model_type\": \"mamba\"}");
  ExpectRefusal({"--model=" + model_}, 65, "MambaForCausalLM");
}

INSTANTIATE_TEST_SUITE_P(Roles, StartTest, testing::Values("router", "prefill", "decode"),
                         [](const auto& instance) { return instance.param; });

class WorkerStartTest : public StartTest {};

TEST_P(WorkerStartTest, TruncatedWeights) {
  Truncate("model.safetensors", 100000);
  ExpectRefusal({"--model=" + model_}, 65, "model.safetensors");
}

TEST_P(WorkerStartTest, NoWeights) {
  fs::remove(model_ + "/model.safetensors");
  ExpectRefusal({"--model=" + model_}, 66, "model.safetensors");
}

TEST_P(WorkerStartTest, PoolSmallerThanABlock) {
  ExpectRefusal({"--model=" + model_, "--kv_memory=1KiB"}, 65, "kv_memory");
}

TEST_P(WorkerStartTest, MoreMemoryThanThereIs) {
  ExpectRefusal({"--model=" + model_, "--kv_memory=900TiB", "--dram_memory=100TiB"}, 78,
                "kv_memory=900TiB and dram_memory=100TiB is 1000 TiB; this process may use");
}

TEST_P(WorkerStartTest, ADraftModelWithAnotherTokenizer) {
  std::ifstream file(model_ + "/tokenizer.json");
  std::string tokenizer((std::istreambuf_iterator<char>(file)), {});
  const size_t one = tokenizer.find(": 2044,"), next = tokenizer.find(": 2045,");
  ASSERT_LT(one, next);
  ASSERT_NE(next, std::string::npos);
  std::swap(tokenizer[one + 5], tokenizer[next + 5]);
  Write("tokenizer.json", tokenizer);
  ExpectRefusal({"--model=" + ModelFolder(), "--draft_model=" + model_}, 65,
                "whose token 2044 is ' When', and model's is ' herbs'; use a draft model with the "
                "tokenizer of model");
}

TEST_P(WorkerStartTest, NoDraftModel) {
  ExpectRefusal({"--model=" + model_, "--draft_model=/nowhere/at-all"}, 66, "/nowhere/at-all");
}

TEST_P(WorkerStartTest, PoolOfTheDraftModelSmallerThanABlock) {
  ExpectRefusal({"--model=" + model_, "--draft_model=" + ModelFolder(), "--draft_kv_memory=1KiB"},
                65, "draft_model");
}

TEST_P(WorkerStartTest, MemoryForExpertsWithoutADirectory) {
  ExpectRefusal({"--model=" + model_, "--expert_memory=1GiB"}, 65,
                "expert_memory is 1GiB, and expert_dir is empty");
}

TEST_P(WorkerStartTest, MemoryForExpertsOfADenseModel) {
  ExpectRefusal({"--model=" + model_, "--expert_memory=1GiB", "--expert_dir=" + model_}, 65,
                "is a LlamaForCausalLM without experts; leave expert_memory out");
}

TEST_P(WorkerStartTest, MemoryForExpertsOnAGpu) {
  ExpectRefusal(
      {"--model=" + model_, "--expert_memory=1GiB", "--expert_dir=" + model_, "--device=cuda:0"},
      78, "experts on a disk need device=cpu");
}

TEST_P(WorkerStartTest, PackedWeightsInNoDirectory) {
  ExpectRefusal({"--model=" + model_, "--packed_weights_dir=/nowhere/at-all"}, 66,
                "opening packed_weights_dir /nowhere/at-all");
}

TEST_P(WorkerStartTest, PackedWeightsOnAGpu) {
  ExpectRefusal({"--model=" + model_, "--packed_weights_dir=" + model_, "--device=cuda:0"}, 78,
                "weights are shared with device=cpu only");
}

TEST_P(WorkerStartTest, FileOfPagesInNoDirectory) {
  ExpectRefusal({"--model=" + model_, "--kv_memory=64MiB", "--kv_file_size=100MiB",
                 "--kv_file_dir=/nowhere/at-all"},
                66, "a file for pages of KV in /nowhere/at-all");
}

TEST_P(WorkerStartTest, FileOfPagesInMemory) {
  ExpectRefusal(
      {"--model=" + model_, "--kv_memory=64MiB", "--kv_file_size=100MiB", "--kv_file_dir=/dev/shm"},
      78, "/dev/shm is on a file system in memory");
}

TEST_P(WorkerStartTest, FileOfPagesNoLargerThanMemory) {
  ExpectRefusal(
      {"--model=" + model_, "--kv_memory=1GiB", "--kv_file_size=1GiB", "--kv_file_dir=" + model_},
      65, "kv_file_size is 1GiB, and kv_memory is 1GiB; the file must be larger");
}

TEST_P(WorkerStartTest, FileOfPagesOnAGpu) {
  ExpectRefusal({"--model=" + model_, "--kv_file_dir=" + model_, "--device=cuda:0"}, 78,
                "pages in a file need device=cpu");
}

TEST_P(WorkerStartTest, UnknownFault) {
  ExpectRefusal({"--model=" + model_, "--fault=lunch:kill"}, 65, "fault");
}

INSTANTIATE_TEST_SUITE_P(Roles, WorkerStartTest, testing::Values("prefill", "decode"),
                         [](const auto& instance) { return instance.param; });

class RouterStartTest : public StartTest {};

TEST_P(RouterStartTest, NoTokenizer) {
  fs::remove(model_ + "/tokenizer.json");
  ExpectRefusal({"--model=" + model_}, 66, "tokenizer.json");
}

TEST_P(RouterStartTest, MalformedTokenizer) {
  Truncate("tokenizer.json", 1000);
  ExpectRefusal({"--model=" + model_}, 65, "tokenizer.json");
}

TEST_P(RouterStartTest, CertificateOfThePublicPortWithoutItsKey) {
  ExpectRefusal({"--model=" + model_, "--tls_cert=" + model_ + "/config.json"}, 78,
                "tls_key is missing; set tls_cert and tls_key together");
}

TEST_P(RouterStartTest, ACaOfCallersNeedsACertificate) {
  ExpectRefusal({"--model=" + model_, "--tls_client_ca=" + model_ + "/config.json"}, 78,
                "tls_cert is missing");
}

INSTANTIATE_TEST_SUITE_P(Roles, RouterStartTest, testing::Values("router"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace penstock
