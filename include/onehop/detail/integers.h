/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The integer types of stdint.h. NVRTC has no standard headers; there these types match those of
 * libcu++, so that a kernel may include both.
 */
#ifndef ONEHOP_DETAIL_INTEGERS_H_
#define ONEHOP_DETAIL_INTEGERS_H_

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#endif /* ONEHOP_DETAIL_INTEGERS_H_ */
