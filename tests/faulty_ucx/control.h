// SPDX-License-Identifier: Apache-2.0
//
// UCX with failures, libucp-faulty.so: every call goes to the real library, but where a rule says
// that it fails. The real one is FAULTY_UCX_REAL, a file, or the system's libucp.so.0; it is opened
// at the first call of UCX.
//
// Rules are FUNCTION:N=CODE, divided by commas, in the variable FAULTY_UCX or by faulty_ucx_fail():
//
//   ucp_init_version:1=-4           the next call fails with UCS_ERR_NO_MEMORY; it is not made
//   ucp_am_send_nbx:3+=-4           the third one from now, and all after it
//   ucp_am_send_nbx:1=-3:later      begins a request, which the worker's next progress ends with
//                                   the code
//   ucp_am_send_nbx:1=0:never       begins one that ends only when its endpoint is closed: as
//                                   cancelled
//   ucp_am_send_nbx:1=0:last        begins one that ends as cancelled when its worker is destroyed,
//                                   after its endpoint
//   ucp_worker_progress:1=-25       the error handler of the worker's oldest open endpoint is
//                                   called with the code; counted while there is one
//
// ucp_ep_close_nbx closes and ucp_mem_unmap unmaps, whatever they say; `later`, `never` and `last`
// are for what returns requests.
//
// Threading: any thread.
#ifndef ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_
#define ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// These rules and no others from now on; calls are counted anew. 0: set; -1: not understood.
int faulty_ucx_fail(const char* rules);
// How often a rule has struck since.
uint64_t faulty_ucx_struck(void);

// What this process has not given back.
typedef struct FaultyUcxCounts {
  size_t configs;
  size_t workers;
  size_t addresses;
  size_t endpoints;
  size_t requests;
  size_t data;    // of active messages, kept beyond the callback
  size_t mapped;  // memory
  size_t packed;  // keys, in UCX's buffers
  size_t keys;    // of others, unpacked
} FaultyUcxCounts;
void faulty_ucx_counts(FaultyUcxCounts* counts);

// How often a function that may fail has been called so far; UINT64_MAX: none of that name.
uint64_t faulty_ucx_calls(const char* function);

#ifdef __cplusplus
}
#endif

#endif  // ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_
