#pragma once

#include <string>

namespace penstock::world {

// The present faults of a host's disk.
struct DiskFaults {
  bool fails = false;  // reads and writes end with EIO
  bool full = false;   // writes end with ENOSPC
  bool rots = false;   // some reads return a flipped bit
};
DiskFaults& DiskOf(int host);

// The directory of this world's disks, which are real files in memory, and that of a host.
std::string DisksOf(int process_id);
std::string DiskPath(int host);

}  // namespace penstock::world
