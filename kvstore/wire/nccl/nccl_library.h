#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kvstore/wire/nccl/nccl_abi.h"

namespace penstock {

// NCCL, loaded at run time. It stays loaded until the process ends, because threads of its own may
// run in it. Immutable; any thread.
class NcclLibrary {
 public:
  // `path` is an argument of dlopen, e.g. "libnccl.so.2". FAILED_PRECONDITION names the problem and
  // the remedy. Versions from 2.19 on are accepted: the first whose abort is safe to call from
  // several threads.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Load(const std::string& path);

  const nccl::Functions& calls() const { return calls_; }
  const std::string& version() const { return version_; }  // "2.28.9"
  // UNAVAILABLE with NCCL's error text; `comm` may be null.
  absl::Status StatusOf(nccl::Result result, std::string_view what, nccl::Comm* comm) const;

 private:
  nccl::Functions calls_{};
  std::string version_;
};

}  // namespace penstock
