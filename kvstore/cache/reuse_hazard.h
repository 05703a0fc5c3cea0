#pragma once

#include <array>
#include <cstdint>

namespace penstock {

// Learns how likely a block is to be reused, by its class (used once, twice, ...) and by the time
// since its last use. It keeps, for each class, a histogram of the ages at which blocks were
// reused, including evicted ones. Old observations decay exponentially. Pure; one thread at a time.
class ReuseHazard {
 public:
  static constexpr int kClasses = 12;
  // The class of a block used `uses` times: 0 for once, up to kClasses - 1.
  static int ClassOf(uint32_t uses);

  // Must be called once for each access, before the access is observed.
  void CountAccess();
  void ObserveUse(int to_class, int64_t blocks);  // blocks that are of this class now
  // Blocks that were reused at this age.
  void ObserveReuse(int from_class, double age_s, int64_t blocks);

  // The worth of keeping a block of this class and age: its Gittins index, the best ratio of
  // expected reuses to seconds of occupied room over all times at which keeping may stop.
  double Worth(int of_class, double age_s) const;

 private:
  static constexpr int kBuckets = 20;
  struct Class {
    double uses = 0;
    std::array<double, kBuckets> reuses{};
    std::array<double, kBuckets> worth{};
    bool known = false;
  };
  static int BucketOf(double age_s);
  void Learn(Class& one) const;

  std::array<Class, kClasses> classes_;
  int accesses_ = 0;
};

}  // namespace penstock
