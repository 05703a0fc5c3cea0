#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

struct ReplicaCounts {
  uint32_t prefill = 0;
  uint32_t decode = 0;
  bool operator==(const ReplicaCounts&) const = default;
};

// The cluster manager that starts and ends workers. The methods return at once; any thread.
class ScaleTarget {
 public:
  virtual ~ScaleTarget() = default;
  // True while this router decides. At most one router of a cluster does.
  virtual bool leads() = 0;
  // The replicas that are wanted now, started or not; nullopt: not known yet.
  virtual std::optional<ReplicaCounts> Wanted() = 0;
  // From now on these are wanted.
  virtual void Want(const ReplicaCounts& counts) = 0;
};

// Follows its own decisions and changes nothing, so that an operator sees what would be done.
class DryRunTarget final : public ScaleTarget {
 public:
  bool leads() override { return true; }
  std::optional<ReplicaCounts> Wanted() override { return wanted_; }
  void Want(const ReplicaCounts& counts) override { wanted_ = counts; }

 private:
  std::optional<ReplicaCounts> wanted_;
};

}  // namespace penstock
