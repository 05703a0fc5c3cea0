#pragma once

#include <cstddef>
#include <functional>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"

namespace penstock {

// What happens to a decode worker in the middle of an answer.
struct Disturbance {
  int signal;             // it dies (SIGKILL), or it ends and hands its sequences over (SIGTERM)
  size_t tokens;          // that the first choice has by then
  bool may_pass = false;  // the answer may end on its worker all the same
};

// The answer of `ask`, which passes its argument to Ask as `on_tokens`, disturbed. The answer may
// end before the signal comes, where the machine is busy: then the worker is started again and the
// answer asked for once more, ten times in all. CHECKs, with the logs, that one was disturbed.
TestAnswer AskDisturbed(
    Cluster& cluster, const Disturbance& disturbance,
    const std::function<TestAnswer(const std::function<void(const TestAnswer&)>&)>& ask);

}  // namespace penstock
