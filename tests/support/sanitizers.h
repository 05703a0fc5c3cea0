#pragma once

// Defines PENSTOCK_TEST_SANITIZED where AddressSanitizer or ThreadSanitizer watches the test, which
// then takes more memory and time. g++ and clang say it in different ways.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PENSTOCK_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PENSTOCK_TEST_SANITIZED
#endif
#endif
