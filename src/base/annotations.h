// SPDX-License-Identifier: Apache-2.0
//
// Thread-safety annotations, checked by clang (-Wthread-safety) in the lint lane.
#pragma once

#if defined(__clang__)
#define OH_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define OH_THREAD_ANNOTATION(x)
#endif

#define OH_CAPABILITY(name) OH_THREAD_ANNOTATION(capability(name))
#define OH_SCOPED_CAPABILITY OH_THREAD_ANNOTATION(scoped_lockable)
#define OH_GUARDED_BY(lock) OH_THREAD_ANNOTATION(guarded_by(lock))
#define OH_REQUIRES(...) OH_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define OH_EXCLUDES(...) OH_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define OH_ACQUIRE(...) OH_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define OH_RELEASE(...) OH_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define OH_TRY_ACQUIRE(...) OH_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define OH_ASSERT_HELD(lock) OH_THREAD_ANNOTATION(assert_capability(lock))
#define OH_NO_THREAD_ANALYSIS OH_THREAD_ANNOTATION(no_thread_safety_analysis)
