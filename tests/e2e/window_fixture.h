#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "tests/e2e/models/model_fixture.h"
#include "tests/e2e/models/window_model.h"
#include "tests/e2e/peer_fixture.h"

namespace penstock {

// Clusters whose model has sliding windows, compared with one process that keeps all KV.
class WindowCase : public ModelTest {
 protected:
  void Make(int32_t window, WindowedLayersOf layers = WindowedLayersOf::kAll) {
    WriteWindowModel(folder(), window, layers);
    Load();
  }

  TestAnswer Check(Cluster& cluster, const TestRequest& request) {
    TestAnswer answer = AskOne(cluster, request);
    Expect(cluster, request, answer);
    return answer;
  }

  // Requests of many lengths, some with several choices. Every second prompt begins as the one
  // before it, and every third repeats itself, so that guesses are right.
  std::vector<TestRequest> SharingRequests() {
    std::vector<TestRequest> requests = MakeRequests(36, 1500, local().vocab(), 21);
    for (size_t r = 0; r < requests.size(); ++r) {
      TestRequest& request = requests[r];
      request.tokens_max = 30 + static_cast<int>(r * 37 % 400);
      request.choices = r % 6 == 5 ? 3 : 1;
      request.sampling.stop_token_ids.clear();
      if (r % 2 == 1) {
        const auto& before = requests[r - 1].prompt;
        const auto common = static_cast<std::ptrdiff_t>(before.size() * (r % 5) / 4);
        request.prompt.insert(
            request.prompt.begin(), before.begin(),
            before.begin() + std::min<std::ptrdiff_t>(common, std::ssize(before)));
      }
      for (size_t i = 50; r % 3 == 0 && i < request.prompt.size(); ++i) {
        request.prompt[i] = request.prompt[i - 50];
      }
    }
    return requests;
  }

  // The turns of a conversation, each asked for twice, then another prompt and the last turn once
  // more. Returns the most tokens that a turn has found in a cache.
  uint32_t Converse(Cluster& cluster) {
    TestRequest request = LongRequest(1100, 60, 31);
    uint32_t cached = 0;
    for (int turn = 0; turn < 8; ++turn) {
      const TestAnswer answer = Check(cluster, request);
      cached = std::max(cached, answer.usage.cached_tokens());
      if (turn % 2 == 0) continue;
      request.prompt.insert(request.prompt.end(), answer.tokens[0].begin(), answer.tokens[0].end());
      const TestRequest more = LongRequest(40 + turn * 70, 60, 32 + static_cast<uint32_t>(turn));
      request.prompt.insert(request.prompt.end(), more.prompt.begin(), more.prompt.end());
    }
    Check(cluster, LongRequest(900, 40, 50));
    Check(cluster, request);
    return cached;
  }

  // Another prefill worker reads the request's prefix from the one that has computed it, whole.
  void CheckPeerRead(Cluster& cluster, const TestRequest& request) {
    const WorkerProcess& owner = cluster.prefill()[0];
    const WorkerProcess& reader = cluster.prefill()[1];
    const auto ask = [&](const WorkerProcess& worker, const std::optional<v1::PeerPrefix>& peer) {
      PlannedAnswer answer = Attempt(request, worker, cluster.decode()[0]).Run(peer);
      EXPECT_TRUE(answer.prefill.ok()) << answer.prefill.error_message() << cluster.Logs();
      EXPECT_EQ(answer.tokens,
                local().Generate(request.prompt, request.sampling, request.tokens_max));
      return answer;
    };
    ask(owner, std::nullopt);
    const PlannedAnswer answer = ask(reader, PeerOf(owner, reader, FullBlocks(request)));
    EXPECT_EQ(answer.first.peer().outcome(), v1::PeerRead::READ);
    EXPECT_EQ(answer.first.cached_tokens(), FullBlocks(request) * 16);
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
  }
};

}  // namespace penstock
