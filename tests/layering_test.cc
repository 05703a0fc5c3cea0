// Non-functional properties of the source itself, checked like any other behaviour.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Who may include whom; a folder may always include itself. docs/ARCHITECTURE.md draws it.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"proto", {}},
    {"kernels", {"base"}},
    {"model", {"base", "kernels"}},
    {"kvstore", {"base", "kernels", "proto"}},
    {"worker", {"base", "proto", "kernels", "model", "kvstore"}},
    {"prefill_worker", {"base", "proto", "kernels", "model", "kvstore", "worker"}},
    {"decode_worker", {"base", "proto", "kernels", "model", "kvstore", "worker"}},
    {"worker_main", {"base", "proto", "worker", "prefill_worker", "decode_worker"}},
    {"router",
     {"base", "proto", "kvstore/block_hash.h", "kvstore/kv_policy.h", "model/tokenizer.h",
      "model/detokenizer.h", "model/chat_template.h", "model/stop_matcher.h",
      "model/tokenizer_utf8.h", "model/model_config.h"}},
    {"bench", {"base", "proto", "kernels", "model", "kvstore", "router"}},
    {"plan", {"base", "kernels", "model"}},
    {"cli", {"base", "proto", "bench", "plan", "kvstore/store_admin.h"}},
};

// The only files that may name a third-party API or do something that hides well.
struct Confined {
  std::string text;
  std::regex owner;
};
const Confined kConfined[] = {
    {"#include <ucp/", std::regex("kvstore/wire_ucx[a-z_]*\\.cc")},
    {"#include <uct/", std::regex("kvstore/wire_ucx[a-z_]*\\.cc")},
    {"#include <liburing", std::regex("kvstore/io_queue_uring\\.cc")},
    {"#include <nccl", std::regex("no file")},  // kvstore/nccl_abi.h declares what we call
    {"#include <dlfcn.h>", std::regex("kvstore/nccl_library\\.cc")},
    {"#include <cuda", std::regex("kernels/(.*_cuda\\.cu|cuda/device\\.cuh)")},
    {"#include <immintrin.h>",
     std::regex("kernels/.*\\.(cc|h)|kvstore/crc32c\\.cc|bench/kernels_limits\\.cc")},
    {"getenv(",
     std::regex("base/config\\.cc|cli/.*\\.cc|bench/transfer\\.cc|kvstore/wire_ucx[a-z_]*\\.cc|"
                "kernels/cuda/emulator_runtime\\.cc")},
    // A thread that NCCL does not give back (docs/adr/0024-nccl-lane.md).
    {".detach()", std::regex("kvstore/nccl_channel\\.cc")},
    {"using namespace std", std::regex("no file")},
};

bool MayInclude(const std::string& from, const std::string& path) {
  const std::string to = path.substr(0, path.find('/'));
  const std::set<std::string>& allowed = kMayInclude.at(from);
  return from == to || !kMayInclude.contains(to) || allowed.contains(to) || allowed.contains(path);
}

void CheckFile(const std::string& folder, const fs::path& file, const std::string& path) {
  static const std::regex include("^#include \"([^\"]+/[^\"]+)\"");
  std::ifstream stream(file);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    const std::string where = path + ":" + std::to_string(number);
    EXPECT_LE(line.size(), 100u) << where << ": wider than 100 columns";
    std::smatch match;
    if (std::regex_search(line, match, include)) {
      EXPECT_TRUE(MayInclude(folder, match[1]))
          << where << ": " << folder << " includes " << match[1];
    }
    for (const Confined& confined : kConfined) {
      if (line.find(confined.text) == std::string::npos) continue;
      EXPECT_TRUE(std::regex_match(path, confined.owner))
          << where << ": " << confined.text << " does not belong here";
    }
  }
}

TEST(Layering, EveryLineKeepsTheRules) {
  const char* root = std::getenv("PENSTOCK_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  int files = 0;
  for (const auto& [folder, unused] : kMayInclude) {
    ASSERT_TRUE(fs::exists(fs::path(root) / folder)) << folder;
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / folder)) {
      const std::string extension = entry.path().extension();
      static const std::set<std::string> kSources = {".h", ".cc", ".cu", ".cuh"};
      if (!kSources.contains(extension)) continue;
      CheckFile(folder, entry.path(), fs::relative(entry.path(), root));
      ++files;
    }
  }
  EXPECT_GT(files, 60);
}

}  // namespace
}  // namespace penstock
