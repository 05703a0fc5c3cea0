#include "kvstore/wire/stream/stream_links.h"

#include <openssl/rand.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "base/check.h"
#include "kvstore/wire/stream/stream_link.h"

namespace penstock {
namespace {

class Links final : public StreamLinks {
 public:
  bool TakesDeviceMemory() const override { return false; }

  absl::StatusOr<std::unique_ptr<WireLink>> NewLink(Args args) override {
    if (args.peer) return std::make_unique<StreamLink>(std::move(args), "");
    std::string name(sizeof(StreamHello::link), '\0');
    PENSTOCK_CHECK_EQ(
        RAND_bytes(reinterpret_cast<unsigned char*>(name.data()), static_cast<int>(name.size())),
        1);
    auto link = std::make_unique<StreamLink>(std::move(args), name);
    waiting_[name] = link.get();
    link->on_settled = [this, name] { waiting_.erase(name); };
    return link;
  }

  // A link's name is used once, whether the proof was right or not.
  bool Join(int fd, const StreamHello& hello) override {
    const std::string name(reinterpret_cast<const char*>(hello.link.data()), hello.link.size());
    const auto found = waiting_.find(name);
    if (found == waiting_.end()) {
      close(fd);
      return false;
    }
    return waiting_.extract(found).mapped()->Adopt(fd, hello);
  }

 private:
  std::map<std::string, StreamLink*> waiting_;
};

}  // namespace

std::unique_ptr<StreamLinks> MakeStreamLinks() { return std::make_unique<Links>(); }

}  // namespace penstock
