#include "http/exchange.h"

#include <utility>

#include "base/check.h"

namespace penstock {

void Exchange::Respond(HttpResponse response) { Stream(std::move(response), nullptr); }

void Exchange::Stream(HttpResponse head, std::shared_ptr<BodySource> source) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    PENSTOCK_CHECK(!answer_, "a request is answered once");
    answer_ = Answer{std::move(head), std::move(source)};
  }
  wake_();
}

void Exchange::OnClientLeft(std::function<void()> left) {
  {
    MutexLock lock(mutex_);
    if (!client_left_) {
      left_ = std::move(left);
      return;
    }
  }
  left();
}

bool Exchange::client_left() const {
  MutexLock lock(mutex_);
  return client_left_;
}

std::optional<Exchange::Answer> Exchange::TakeAnswer() {
  MutexLock lock(mutex_);
  return std::exchange(answer_, std::nullopt);
}

void Exchange::Close(bool client_left) {
  std::function<void()> tell;
  std::optional<Answer> dropped;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    client_left_ = client_left;
    if (client_left) tell.swap(left_);
    left_ = nullptr;
    dropped.swap(answer_);
  }
  if (tell) tell();
}

}  // namespace penstock
