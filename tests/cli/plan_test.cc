// `penstock plan` as a command: its flags, the models that it reads, and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "tests/cli/process.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct PlanOutcome {
  int exit_code;
  std::string output, error;
};

PlanOutcome RunPlan(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> arguments = {BinaryFolder() + "/penstock", "plan", "--model",
                                        SourceFolder() + "/" + model};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Process process(arguments);
  process.CloseInput();
  const int code = process.Wait();
  return {code, process.output(), process.error()};
}

nlohmann::json PlanOf(const std::string& model, std::vector<std::string> more) {
  more.insert(more.end(), {"--hardware", "h200", "--json"});
  const PlanOutcome outcome = RunPlan(model, more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  return nlohmann::json::parse(outcome.output);
}

constexpr char kTiny[] = "models/penstock-tiny";
constexpr char kGolden[] = "tests/golden/logits/";

TEST(PlanCommand, TakesTheWorkersFlags) {
  const auto plain = PlanOf(kTiny, {});
  const auto plan = PlanOf(kTiny, {"--weights", "int8", "--kv-format", "i8", "--tensor-parallel",
                                   "1", "--decode-tensor-parallel", "2"});
  EXPECT_EQ(plain["weights"], "bf16");
  EXPECT_EQ(plan["weights"], "int8 g128, lm_head int8 g128");
  EXPECT_EQ(plan["kv_format"], "i8");
  EXPECT_LT(plan["block_bytes"], plain["block_bytes"]);
  EXPECT_EQ(plan["roles"]["prefill"]["tensor_parallel"], 1);
  EXPECT_EQ(plan["roles"]["decode"]["tensor_parallel"], 2);
  EXPECT_EQ(plan["devices"], 3);
  EXPECT_FALSE(plan["warnings"].empty());
}

TEST(PlanCommand, StepsAreTheWorkersDefaults) {
  const auto on_gpus = PlanOf(kTiny, {});
  EXPECT_EQ(on_gpus["batch"], 256);
  EXPECT_EQ(on_gpus["batch_limit"], "max_batch");
  const PlanOutcome here = RunPlan(kTiny, {"--hardware", "cpu", "--token-ms", "10000", "--json"});
  ASSERT_EQ(here.exit_code, 0) << here.error;
  EXPECT_EQ(nlohmann::json::parse(here.output)["batch"], 64);
  EXPECT_EQ(PlanOf(kTiny, {"--max-batch", "8"})["batch"], 8);
}

TEST(PlanCommand, MeasuresQuantisedFiles) {
  const std::string golden = kGolden;
  EXPECT_EQ(PlanOf(golden + "quantised_gptq", {})["weights"], "int4 g32, lm_head bf16");
  EXPECT_THAT(PlanOf(golden + "gguf_q4_0/model.gguf", {})["weights"].get<std::string>(),
              HasSubstr("int4 g32"));
  const PlanOutcome outcome =
      RunPlan(golden + "quantised_gptq", {"--hardware", "h200", "--weights", "int4"});
  EXPECT_EQ(outcome.exit_code, 65);
  EXPECT_THAT(outcome.error, HasSubstr("use --weights=checkpoint"));
}

// Memory that experts do not take is the pages': a CPU worker's, of this machine.
TEST(PlanCommand, ExpertsBeyondTheirMemoryAreOnADisk) {
  const std::string model = std::string(kGolden) + "mixtral";
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--hardware", "cpu", "--memory", "1GiB", "--token-ms", "10000", "--json"});
    const PlanOutcome outcome = RunPlan(model, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    return nlohmann::json::parse(outcome.output);
  };
  const auto all = plan({}), some = plan({"--expert-memory", "4KiB"});
  EXPECT_GT(some["kv_memory_bytes"], all["kv_memory_bytes"]);
  EXPECT_THAT(some["warnings"].dump(), HasSubstr("4 KiB of "));
  EXPECT_THAT(some["warnings"].dump(), HasSubstr("the file in expert_dir takes"));
  EXPECT_EQ(all["warnings"].dump().find("expert_dir"), std::string::npos);
  const PlanOutcome dense = RunPlan(kTiny, {"--expert-memory", "1GiB"});
  EXPECT_EQ(dense.exit_code, 65);
  EXPECT_THAT(dense.error, HasSubstr("--expert-memory: a LlamaForCausalLM has no experts"));
  const PlanOutcome gpu = RunPlan(model, {"--expert-memory", "1GiB", "--hardware", "h200"});
  EXPECT_EQ(gpu.exit_code, 65);
  EXPECT_THAT(gpu.error, HasSubstr("have all experts in memory; leave it out"));
}

TEST(PlanCommand, ReadsATrace) {
  const TempFolder folder;
  const std::string path = folder.path() + "/trace.jsonl";
  std::ofstream file(path);
  for (int i = 0; i < 5; ++i) {
    file << R"({"timestamp": )" << 1000 * i
         << R"(, "input_length": 1024, "output_length": 100, "hash_ids": [0, )" << i + 1 << "]}\n";
  }
  file.close();
  const auto plan = PlanOf(kTiny, {"--trace", path});
  EXPECT_EQ(plan["traffic"]["requests_per_s"], 1.25);
  EXPECT_EQ(plan["traffic"]["prompt_tokens"], 1024);
  EXPECT_EQ(plan["traffic"]["answer_tokens"], 100);
  EXPECT_EQ(plan["traffic"]["hit_ratio"], 0.4);  // the first block, but for the first request
  EXPECT_EQ(PlanOf(kTiny, {"--trace", path, "--rate", "9"})["traffic"]["requests_per_s"], 9);
  EXPECT_EQ(RunPlan(kTiny, {"--trace", path, "--hit-ratio", "0.5"}).exit_code, 64);
  const PlanOutcome missing = RunPlan(kTiny, {"--trace", "/nowhere", "--hardware", "h200"});
  EXPECT_THAT(missing.error, HasSubstr("cannot open the trace /nowhere"));
  EXPECT_NE(missing.exit_code, 0);
}

TEST(PlanCommand, AFlagHasItsChoices) {
  EXPECT_EQ(RunPlan(kTiny, {"--tensor-parallel", "3"}).exit_code, 64);
  EXPECT_EQ(RunPlan(kTiny, {"--kv-format", "int8"}).exit_code, 64);
  EXPECT_THAT(RunPlan(kTiny, {"--kv-format", "i8+100"}).error, HasSubstr("a multiple of 64"));
  for (const char* format : {"k3v3+128", "k3v3c+128"}) {
    EXPECT_EQ(RunPlan(kTiny, {"--kv-format", format, "--hardware", "h200"}).exit_code, 0);
  }
  // Chunks so short that a sequence has rows for few of its blocks.
  const auto two =
      PlanOf(kTiny, {"--kv-format", "k3v3+128", "--tensor-parallel", "2", "--chunk-tokens", "64"});
  EXPECT_EQ(two["kv_format"], "k3v3+128");
  EXPECT_EQ(two["roles"]["decode"]["tensor_parallel"], 2);
  EXPECT_GT(two["rows"], 0);
  EXPECT_LT(two["rows"], two["blocks"]);
  const PlanOutcome outcome = RunPlan(kTiny, {"--hardware", "abacus"});
  EXPECT_THAT(outcome.error, HasSubstr("h100-sxm"));
}

}  // namespace
}  // namespace penstock
