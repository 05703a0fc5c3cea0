#include "base/memory_limit.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lab/fake/temp_folder.h"

namespace penstock {
namespace {

class MemoryLimitTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Bytes() const { return ReadMemoryLimit(folder_.path()).bytes; }

  const TempFolder folder_;
};

TEST_F(MemoryLimitTest, IsTheMachinesMemoryWithoutCgroups) {
  EXPECT_EQ(Bytes(), UINT64_MAX);
  Write("proc/meminfo", "MemTotal:        2048 kB\nMemFree:          512 kB\n");
  EXPECT_EQ(Bytes(), 2048u * 1024);
  EXPECT_EQ(ReadMemoryLimit(folder_.path()).source, "the memory of this machine");
}

TEST_F(MemoryLimitTest, IsTheLeastOfAGroupAndThoseAboveIt) {
  Write("proc/meminfo", "MemTotal:        2048 kB\n");
  Write("proc/self/cgroup", "0::/pods/one\n");
  Write("sys/fs/cgroup/pods/one/memory.max", "max\n");
  EXPECT_EQ(Bytes(), 2048u * 1024);
  Write("sys/fs/cgroup/pods/memory.max", "70000\n");
  EXPECT_EQ(Bytes(), 70000u);
  Write("sys/fs/cgroup/pods/one/memory.max", "60000\n");
  EXPECT_EQ(Bytes(), 60000u);
  EXPECT_TRUE(ReadMemoryLimit(folder_.path()).source.ends_with("pods/one/memory.max"));
}

TEST_F(MemoryLimitTest, KnowsVersion1) {
  Write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:blkio,memory:/pods/one\n");
  Write("sys/fs/cgroup/memory/pods/one/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "80000\n");
  EXPECT_EQ(Bytes(), 80000u);
}

TEST_F(MemoryLimitTest, WhatIsMalformedLimitsNothing) {
  Write("proc/meminfo", "none");
  Write("proc/self/cgroup", "garbage\n0::\n:memory:../..\n");
  Write("sys/fs/cgroup/memory.max", "much\n");
  EXPECT_EQ(Bytes(), UINT64_MAX);
}

}  // namespace
}  // namespace penstock
