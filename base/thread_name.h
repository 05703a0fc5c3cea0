#pragma once

#include <pthread.h>

namespace penstock {

// What ps, top and debuggers show for the calling thread; at most 15 bytes.
inline void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace penstock
