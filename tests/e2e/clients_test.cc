// Clients in other languages, unchanged, against real processes: OpenAI's own in Python, gRPC's
// with what is generated from the .proto, and curl.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/script.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

TEST(Clients, RunUnchanged) {
  const std::string source = SourceFolder();
  const std::string scripts = source + "/tests/e2e/python";
  const std::string venv = BinaryFolder() + "/../openai-venv";
  const auto [made, ready] = RunScript(scripts + "/venv " + venv);
  if (!ready) GTEST_SKIP() << "the clients cannot be installed here: " << made;
  Cluster cluster({.prefill = 1, .decode = 1});
  const auto [output, good] =
      RunScript(venv + "/bin/python " + scripts + "/openai_client.py " + cluster.http_endpoint());
  EXPECT_TRUE(good) << output << cluster.Logs();
  EXPECT_TRUE(AllHold(output)) << output;
  const auto [messages_said, messages_good] = RunScript(
      venv + "/bin/python " + scripts + "/anthropic_client.py " + cluster.http_endpoint());
  EXPECT_TRUE(messages_good) << messages_said << cluster.Logs();
  EXPECT_TRUE(AllHold(messages_said)) << messages_said;
  const auto [schemas_said, schemas_good] =
      RunScript(venv + "/bin/python " + scripts + "/schema_client.py " + cluster.http_endpoint());
  EXPECT_TRUE(schemas_good) << schemas_said << cluster.Logs();
  EXPECT_TRUE(AllHold(schemas_said)) << schemas_said;
  const auto [grpc_said, grpc_good] =
      RunScript(venv + "/bin/python " + scripts + "/grpc_client.py " + cluster.endpoint() + " " +
                source + "/proto");
  EXPECT_TRUE(grpc_good) << grpc_said << cluster.Logs();
  EXPECT_TRUE(AllHold(grpc_said)) << grpc_said;
  const std::pair<std::string, std::string> examples[] = {
      {venv + "/bin/python " + source + "/examples/openai_chat.py " + cluster.http_endpoint(),
       "prompt tokens were cached"},
      {venv + "/bin/python " + source + "/examples/grpc_generate.py " + cluster.endpoint(),
       "(32 tokens)"},
      {source + "/examples/curl_chat.sh " + cluster.http_endpoint(), "data: [DONE]"},
  };
  for (const auto& [command, expected] : examples) {
    const auto [said, ran] = RunScript(command);
    EXPECT_TRUE(ran) << command << said;
    EXPECT_NE(said.find(expected), std::string::npos) << command << said;
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

// The bundled model under a chat template that shows tools.
class ToolModel {
 public:
  ToolModel() {
    for (const auto& file : std::filesystem::directory_iterator(ModelFolder())) {
      std::filesystem::create_symlink(file.path(),
                                      folder_.path() + "/" + file.path().filename().string());
    }
    std::filesystem::copy_file(SourceFolder() + "/tests/e2e/tools_template.jinja",
                               folder_.path() + "/chat_template.jinja");
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

TEST(Clients, CallTools) {
  const std::string scripts = SourceFolder() + "/tests/e2e/python";
  const std::string venv = BinaryFolder() + "/../openai-venv";
  const auto [made, ready] = RunScript(scripts + "/venv " + venv);
  if (!ready) GTEST_SKIP() << "the clients cannot be installed here: " << made;
  const ToolModel model;
  Cluster cluster({.model = model.path(), .prefill = 1, .decode = 1});
  const auto [said, good] =
      RunScript(venv + "/bin/python " + scripts + "/tools_client.py " + cluster.http_endpoint());
  EXPECT_TRUE(good) << said << cluster.Logs();
  EXPECT_TRUE(AllHold(said)) << said;
  const auto [responses_said, responses_good] = RunScript(
      venv + "/bin/python " + scripts + "/responses_client.py " + cluster.http_endpoint());
  EXPECT_TRUE(responses_good) << responses_said << cluster.Logs();
  EXPECT_TRUE(AllHold(responses_said)) << responses_said;
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

// The bundled model with gpt-oss's chat template and special tokens, of which it knows nothing.
class HarmonyModel {
 public:
  HarmonyModel() {
    for (const auto& file : std::filesystem::directory_iterator(ModelFolder())) {
      const std::string name = file.path().filename().string();
      if (name.ends_with(".json")) {
        std::ofstream(folder_.path() + "/" + name)
            << InHarmony(name, ReadFile(file.path().string()));
      } else {
        std::filesystem::create_symlink(file.path(), folder_.path() + "/" + name);
      }
    }
    std::filesystem::copy_file(SourceFolder() + "/tests/golden/templates/models/gpt_oss.jinja",
                               folder_.path() + "/chat_template.jinja");
  }
  const std::string& path() const { return folder_.path(); }

 private:
  static constexpr int kConstrain = 2046, kCall = 2047;  // the last ones of the vocabulary

  static std::string InHarmony(const std::string& name, std::string text) {
    static const std::pair<std::string, std::string> kNames[] = {{"<|eos|>", "<|return|>"},
                                                                 {"<|system|>", "<|start|>"},
                                                                 {"<|user|>", "<|message|>"},
                                                                 {"<|assistant|>", "<|channel|>"}};
    for (const auto& [old_name, new_name] : kNames) {
      absl::StrReplaceAll({{old_name, new_name}}, &text);
    }
    nlohmann::json json = nlohmann::json::parse(text);
    if (name == "tokenizer.json") AddTokens(json);
    if (name == "config.json" || name == "generation_config.json")
      json["eos_token_id"] = {1, kCall};
    if (name == "tokenizer_config.json") json["eos_token"] = "<|return|>";
    return json.dump();
  }

  // In place of the tokens of the last two merges.
  static void AddTokens(nlohmann::json& tokenizer) {
    nlohmann::json& model = tokenizer["model"];
    for (const auto& [id, spelling] :
         {std::pair(kCall, "<|call|>"), std::pair(kConstrain, "<|constrain|>")}) {
      const nlohmann::json pair = model["merges"].back();
      model["vocab"].erase(pair[0].get<std::string>() + pair[1].get<std::string>());
      model["merges"].erase(model["merges"].size() - 1);
      model["vocab"][spelling] = id;
      nlohmann::json token = tokenizer["added_tokens"][0];
      token.update({{"id", id}, {"content", spelling}});
      tokenizer["added_tokens"].push_back(token);
    }
  }

  TempFolder folder_;
};

// A client of tests/e2e/python in an environment with its packages, against a model.
void ExpectClient(const std::string& environment, const std::string& client,
                  const std::string& model, const std::string& argument = "") {
  const std::string scripts = SourceFolder() + "/tests/e2e/python";
  const std::string venv = BinaryFolder() + "/../" + environment + "-venv";
  const std::string packages =
      environment == "openai" ? "requirements.txt" : "requirements-" + environment + ".txt";
  const auto [made, ready] = RunScript(scripts + "/venv " + venv + " " + packages);
  if (!ready) GTEST_SKIP() << client << " cannot be installed here: " << made;
  Cluster cluster({.model = model, .prefill = 1, .decode = 1});
  const auto [said, good] = RunScript(venv + "/bin/python " + scripts + "/" + client + " " +
                                      cluster.http_endpoint() + " " + argument);
  EXPECT_TRUE(good) << said << cluster.Logs();
  EXPECT_TRUE(AllHold(said)) << said;
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(20)));
}

TEST(Clients, CallToolsOfHarmony) {
  const HarmonyModel model;
  ExpectClient("openai", "harmony_client.py", model.path(), model.path());
}

TEST(Clients, AgentsCallTools) { ExpectClient("agents", "agents_client.py", ToolModel().path()); }

TEST(Clients, PydanticAiCallsTools) {
  ExpectClient("pydantic-ai", "pydantic_ai_client.py", ToolModel().path());
}

TEST(Clients, LmEvalScoresAndGenerates) {
  ExpectClient("lm-eval", "lm_eval_client.py", ModelFolder(), ModelFolder());
}

// Built as a user would build it: a project of its own, that has of ours what is installed.
TEST(Clients, InCppAreBuiltAndRun) {
  const std::string source = SourceFolder();
  TempFolder folder;
  const std::string proto = folder.path() + "/share/penstock/proto";
  const std::string build = folder.path() + "/build";
  std::filesystem::create_directories(proto);
  std::filesystem::copy(source + "/proto/inference.proto", proto);
  std::filesystem::copy(source + "/examples/cpp", folder.path() + "/example");
  const auto [configured, ready] = RunScript(
      fmt::format("cmake -S {0}/example -B {1} -DCMAKE_PREFIX_PATH={0} -DCMAKE_CXX_FLAGS=-O0 "
                  "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache",
                  folder.path(), build));
  ASSERT_TRUE(ready) << configured;
  const auto [compiled, built] = RunScript("cmake --build " + build);
  ASSERT_TRUE(built) << compiled;
  Cluster cluster({.prefill = 1, .decode = 1});
  const auto [said, ran] = RunScript(build + "/generate " + cluster.endpoint());
  EXPECT_TRUE(ran) << said << cluster.Logs();
  EXPECT_NE(said.find("(32 tokens, "), std::string::npos) << said;
  const auto [refused, went] = RunScript(build + "/generate " + cluster.endpoint() + " ''");
  EXPECT_FALSE(went);
  EXPECT_NE(refused.find("error 3: "), std::string::npos) << refused;
}

}  // namespace
}  // namespace penstock
