// Checks which room may include which, and where third-party APIs may be named.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/rooms.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr int kRoomFilesMax = 32;

// The only files that may name a third-party API or do something that hides well.
struct Confined {
  std::string text;
  std::regex owner;
};
const Confined kConfined[] = {
    {"#include <ucp/", std::regex("kvstore/wire/ucx/ucx[a-z_]*\\.cc")},
    {"#include <uct/", std::regex("kvstore/wire/ucx/ucx_links\\.cc")},
    {"#include <curl/", std::regex("(lab/load/http_client|router/kubernetes/kube_api)\\.cc")},
    {"#include <xgrammar/", std::regex("model/grammar/grammar\\.cc")},
    {"#include <liburing", std::regex("kvstore/tiers/disk/io_queue_uring\\.cc")},
    {"#include <nccl",
     std::regex("no file")},  // kvstore/wire/nccl/nccl_abi.h declares what we call
    {"#include <dlfcn.h>", std::regex("kvstore/wire/nccl/nccl_library\\.cc")},
    {"#include <cuda", std::regex("kernels/cuda/device/(.*_cuda\\.cu|device\\.cuh)")},
    {"#include <cutlass/", std::regex("kernels/library/gemm_tile\\.cuh")},
    {"#include <flashinfer/", std::regex("kernels/library/prefill_kernel\\.cuh")},
    {"#include <immintrin.h>",
     std::regex("kernels/cpu/.*\\.(cc|h)|base/crc32c\\.cc|lab/micro/kernels_limits\\.cc")},
    {"getenv(",
     std::regex("base/config/config\\.cc|(cli|lab)/.*\\.cc|kvstore/wire/ucx/ucx_links\\.cc")},
    // A thread that NCCL does not give back (docs/adr/0024-nccl-lane.md).
    {".detach()", std::regex("kvstore/wire/nccl/nccl_channel\\.cc")},
    {"using namespace std", std::regex("no file")},
};

struct Include {
  std::string where;  // path:line
  std::string from;   // rooms
  std::string to;
};

struct Source {
  std::map<std::string, int> files;  // of each room
  std::vector<Include> includes;     // from one room into another
  std::vector<std::string> faults;
};

std::string RoomOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

void ReadFile(const fs::path& file, const std::string& path, Source& source) {
  static const std::regex include("^#include \"([^\"]+/[^\"]+)\"");
  std::ifstream stream(file);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    const std::string where = path + ":" + std::to_string(number);
    if (line.size() > 100) source.faults.push_back(where + ": wider than 100 columns");
    std::smatch match;
    if (std::regex_search(line, match, include) && RoomOf(match[1]) != RoomOf(path)) {
      source.includes.push_back({where, RoomOf(path), RoomOf(match[1])});
    }
    for (const Confined& confined : kConfined) {
      if (line.find(confined.text) == std::string::npos) continue;
      if (std::regex_match(path, confined.owner)) continue;
      source.faults.push_back(where + ": " + confined.text + " does not belong here");
    }
  }
}

Source ReadSource(const fs::path& root) {
  static const std::set<std::string> kSources = {".h", ".cc", ".cu", ".cuh"};
  std::set<std::string> tops;
  for (const auto& [room, unused] : kRooms) tops.insert(room.substr(0, room.find('/')));
  Source source;
  for (const std::string& top : tops) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!kSources.contains(entry.path().extension())) continue;
      const std::string path = fs::relative(entry.path(), root);
      ++source.files[RoomOf(path)];
      ReadFile(entry.path(), path, source);
    }
  }
  return source;
}

// A path of rooms that leads back to its start, as "a -> b -> a"; empty: none. Depth-first search.
std::string FindCycle(const Rooms& rooms) {
  std::set<std::string> finished;
  std::vector<std::string> path;
  const std::function<std::string(const std::string&)> visit =
      [&](const std::string& room) -> std::string {
    if (finished.contains(room)) return "";
    const bool again = std::find(path.begin(), path.end(), room) != path.end();
    path.push_back(room);
    if (again) {
      std::string cycle;
      for (const std::string& step : path) cycle += (cycle.empty() ? "" : " -> ") + step;
      return cycle;
    }
    const auto arrows = rooms.find(room);
    if (arrows != rooms.end()) {
      for (const std::string& to : arrows->second) {
        if (std::string cycle = visit(to); !cycle.empty()) return cycle;
      }
    }
    path.pop_back();
    finished.insert(room);
    return "";
  };
  for (const auto& [room, unused] : rooms) {
    if (std::string cycle = visit(room); !cycle.empty()) return cycle;
  }
  return "";
}

// Everything in which the source and the table disagree.
std::vector<std::string> FindFaults(const Rooms& rooms, const Source& source) {
  std::vector<std::string> faults = source.faults;
  Rooms unused = rooms;
  for (const auto& [where, from, to] : source.includes) {
    const auto room = rooms.find(from);
    if (room != rooms.end() && room->second.contains(to)) {
      unused[from].erase(to);
    } else {
      faults.push_back(where + ": " + from + " may not include " + to);
    }
  }
  for (const auto& [from, arrows] : unused) {
    for (const std::string& to : arrows)
      faults.push_back("no file uses the arrow " + from + " -> " + to);
  }
  for (const auto& [room, files] : source.files) {
    if (!rooms.contains(room)) faults.push_back(room + " is not in the table of rooms");
    if (files > kRoomFilesMax) {
      faults.push_back(room + " has " + std::to_string(files) + " files, at most " +
                       std::to_string(kRoomFilesMax));
    }
  }
  for (const auto& [room, arrows] : rooms) {
    if (!source.files.contains(room)) faults.push_back(room + " has no files");
  }
  if (const std::string cycle = FindCycle(rooms); !cycle.empty())
    faults.push_back("cycle: " + cycle);
  return faults;
}

TEST(Layering, RoomsIncludeWhatTheTableAllows) {
  const char* root = std::getenv("PENSTOCK_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  const Source source = ReadSource(root);
  EXPECT_GT(source.includes.size(), 1000u);
  for (const std::string& fault : FindFaults(kRooms, source)) ADD_FAILURE() << fault;
}

// The check itself, on small worlds.
const Rooms kTwoRooms = {{"low", {}}, {"high", {"low"}}};
const std::map<std::string, int> kTwoFiles = {{"low", 1}, {"high", 1}};

TEST(Layering, AnIncludeThatClimbsIsFound) {
  const Source source{
      kTwoFiles, {{"high/a.cc:1", "high", "low"}, {"low/b.cc:1", "low", "high"}}, {}};
  EXPECT_EQ(FindFaults(kTwoRooms, source),
            std::vector<std::string>{"low/b.cc:1: low may not include high"});
}

TEST(Layering, AnArrowThatNoFileUsesIsFound) {
  EXPECT_EQ(FindFaults(kTwoRooms, {kTwoFiles, {}, {}}),
            std::vector<std::string>{"no file uses the arrow high -> low"});
}

TEST(Layering, ACycleIsFound) {
  EXPECT_EQ(FindCycle({{"a", {"b"}}, {"b", {"c"}}, {"c", {"a"}}}), "a -> b -> c -> a");
  EXPECT_EQ(FindCycle({{"a", {"b", "c"}}, {"b", {"c"}}, {"c", {}}}), "");
}

TEST(Layering, ARoomThatIsFullOrUnknownIsFound) {
  const Source source{{{"low", kRoomFilesMax + 1}, {"other", 1}}, {}, {}};
  EXPECT_EQ(FindFaults({{"low", {}}}, source).size(), 2u);
}

}  // namespace
}  // namespace penstock
