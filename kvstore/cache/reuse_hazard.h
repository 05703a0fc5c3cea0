#pragma once

#include <array>
#include <cstdint>

namespace penstock {

// How likely blocks of a class (those used once, twice, ...) are to be used again, by the time
// since their last use, learnt from what happens: a histogram of the ages at which blocks of the
// class were used again, evicted ones too. Old observations fade. Pure; one thread at a time.
class ReuseHazard {
 public:
  static constexpr int kClasses = 12;
  // The class of a block used `uses` times: 0 for once, up to kClasses - 1.
  static int ClassOf(uint32_t uses);

  // Every access, before what it observes.
  void CountAccess();
  void ObserveUse(int to_class, int64_t blocks);                    // they are of this class now
  void ObserveReuse(int from_class, double age_s, int64_t blocks);  // used again at this age

  // What keeping a block of this class and age is worth: the greatest chance of a use for each
  // second of room it takes, over all the times that it may be kept for (its Gittins index).
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
