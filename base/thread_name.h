#pragma once

#include <pthread.h>

namespace penstock {

// Sets the calling thread's name in ps, top and debuggers; at most 15 bytes.
inline void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace penstock
