// SPDX-License-Identifier: Apache-2.0
//
// Whether a test is built with a sanitizer: it is slow then, and does less of what takes long.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define OH_SANITIZED_TESTS 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define OH_SANITIZED_TESTS 1
#endif

#if defined(OH_SANITIZED_TESTS)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
