#include "kernels/eviction/evict_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cpu/thread_pool.h"
#include "kernels/eviction/kv_evictor.h"
#include "tests/kernels/eviction/key_pages.h"

namespace penstock {
namespace {

constexpr int64_t kTokens = 75;

class EvictLayerTest : public ::testing::TestWithParam<KvDtype> {
 protected:
  // A row's codes and scale, as one string of bytes.
  std::string Bytes(const KvRowsAt& at) { return Bytes(pages_, at); }
  std::string Bytes(KeyPages& pages, const KvRowsAt& at) {
    const PagedKv kv = pages.kv();
    const std::byte* layer = kv.Layer(at.block, at.layer);
    const auto* codes =
        reinterpret_cast<const char*>(layer + layout_.CodesAt(at.kv_head, at.plane, at.slot));
    const auto* scales =
        reinterpret_cast<const char*>(layer + layout_.ScalesAt(at.kv_head, at.plane, at.slot));
    return std::string(codes, layout_.RowBytes(at.plane)) +
           std::string(scales, layout_.ScaleBytes());
  }

  const KvLayout layout_{
      .layers = 2, .kv_heads = 3, .head_dim = 16, .block_tokens = 8, .dtype = GetParam()};
  KeyPages pages_{layout_, kTokens, 6, 5};
  CpuEvictor evictor_{Exec()};
};

// Every head keeps slots of its own; layers that are not asked for are not touched.
TEST_P(EvictLayerTest, CopiesWhatTheScoresSay) {
  ThreadPool threads(2);
  const KeepRule rule{.keep = 21, .first = 2, .last = 4, .pool = 3};
  const KeyScoresArgs keys{.scoring = KeyScoring::kKeyNorm,
                           .kv = pages_.kv(),
                           .layer = 1,
                           .blocks = pages_.blocks(),
                           .tokens = kTokens};
  const std::string other(
      reinterpret_cast<const char*>(pages_.kv().Layer(pages_.free_blocks()[0], 0)),
      layout_.LayerBytes());
  CpuEvictor evictor({.threads = &threads});
  EvictLayer(evictor, {.keys = keys, .rule = rule, .to = pages_.free_blocks()});
  std::vector<float> scores(3 * kTokens);
  KeyScoresArgs scored = keys;
  scored.scores = {scores.data(), {3, kTokens}};
  ScoreKeys({}, scored);
  for (int32_t head = 0; head < 3; ++head) {
    const std::vector<uint32_t> kept =
        ChooseSlots(std::span(scores).subspan(head * kTokens, kTokens), rule);
    ASSERT_EQ(kept.size(), 21u);
    for (size_t i = 0; i < kept.size(); ++i) {
      for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
        EXPECT_EQ(Bytes(pages_.At(pages_.free_blocks(), 1, head, plane, i)),
                  Bytes(pages_.At(pages_.blocks(), 1, head, plane, kept[i])))
            << "head " << head << " slot " << i;
      }
    }
  }
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(pages_.kv().Layer(pages_.free_blocks()[0], 0)),
                  layout_.LayerBytes()),
      other);
}

// In place, with one block that others refer to and a new one for it: the bytes of a copy, and the
// others' block is as it was.
TEST_P(EvictLayerTest, InPlaceIsWhatACopyIs) {
  const KeepRule rule{.keep = 35, .first = 2, .last = 4, .pool = 3};
  KeyPages copied{layout_, kTokens, 6, 5};
  const auto evict = [&](KeyPages& pages, std::span<const uint32_t> to) {
    const KeyScoresArgs keys{.scoring = KeyScoring::kKeyNorm,
                             .kv = pages.kv(),
                             .layer = 1,
                             .blocks = pages.blocks(),
                             .tokens = kTokens};
    EvictLayer(evictor_, {.keys = keys, .rule = rule, .to = to});
  };
  evict(copied, copied.free_blocks());
  std::vector<uint32_t> to = pages_.blocks();
  const uint32_t shared = std::exchange(to[2], pages_.free_blocks()[0]);
  const auto* at = reinterpret_cast<const char*>(pages_.kv().Layer(shared, 1));
  const std::string before(at, layout_.LayerBytes());
  evict(pages_, to);
  for (int32_t head = 0; head < 3; ++head) {
    for (int64_t i = 0; i < rule.keep; ++i) {
      for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
        EXPECT_EQ(Bytes(pages_.At(to, 1, head, plane, i)),
                  Bytes(copied, copied.At(copied.free_blocks(), 1, head, plane, i)))
            << "head " << head << " slot " << i;
      }
    }
  }
  EXPECT_EQ(std::string(at, layout_.LayerBytes()), before);
}

INSTANTIATE_TEST_SUITE_P(Formats, EvictLayerTest, ::testing::ValuesIn(kKvDtypes),
                         [](const auto& test) { return std::string(KvDtypeName(test.param)); });

}  // namespace
}  // namespace penstock
