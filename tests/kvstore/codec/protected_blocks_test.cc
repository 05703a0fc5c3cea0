#include <gtest/gtest.h>

#include "kvstore/codec/codec.h"

namespace penstock {
namespace {

// However a sequence is cut into runs, the same blocks are protected.
TEST(ProtectedBlocksTest, AreThoseOfTheSequence) {
  for (uint32_t total = 1; total <= 40; ++total) {
    KvRun all{.first_block = 0,
              .blocks = total,
              .layers = 1,
              .kv_heads = 1,
              .block_tokens = 16,
              .head_dim = 64};
    all = WithProtectedBlocks(all, total);
    EXPECT_EQ(all.protected_first, 1u);
    EXPECT_EQ(all.protected_last, std::min(8u, total - 1)) << total;
    for (uint32_t first = 0; first < total; ++first) {
      for (uint32_t blocks = 1; first + blocks <= total; ++blocks) {
        KvRun run = all;
        run.first_block = first;
        run.blocks = blocks;
        run.protected_first = run.protected_last = 0;
        run = WithProtectedBlocks(run, total);
        for (uint32_t i = 0; i < blocks; ++i) {
          const bool is = i < run.protected_first || i >= blocks - run.protected_last;
          const uint32_t block = first + i;
          EXPECT_EQ(is, block == 0 || block + 8 >= total) << block << " of " << total;
        }
        EXPECT_LE(run.protected_first + run.protected_last, blocks);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
