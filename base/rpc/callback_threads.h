#pragma once

namespace penstock {

// Keeps gRPC's callback threads until the process ends. Without this, gRPC 1.51 joins them when the
// last channel or server is destroyed, on the thread that destroys it. A callback thread that
// destroys the last channel would join itself, and then use the completion queue that it has freed.
// Nothing can say that all callbacks have let go of their channels, so the threads are never given
// back. A process whose calls use callbacks calls this before its first one. Thread-safe; calls
// after the first do nothing.
void KeepCallbackThreads();

}  // namespace penstock
