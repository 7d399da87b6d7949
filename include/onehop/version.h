/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of these headers, as integers for the preprocessor. oh_version() returns the version
 * of the library that the program runs with.
 *
 * Compatibility: within a major version the C interface only grows. A program built with version
 * X.Y runs with every libonehop.so.X that is not older than X.Y. See docs/compatibility.md.
 */
#ifndef ONEHOP_VERSION_H_
#define ONEHOP_VERSION_H_

/* The build takes the version from these lines. */
#define OH_VERSION_MAJOR 0
#define OH_VERSION_MINOR 1
#define OH_VERSION_PATCH 0

/* #if OH_VERSION >= OH_MAKE_VERSION(0, 1, 0) */
#define OH_MAKE_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define OH_VERSION OH_MAKE_VERSION(OH_VERSION_MAJOR, OH_VERSION_MINOR, OH_VERSION_PATCH)

#endif /* ONEHOP_VERSION_H_ */
