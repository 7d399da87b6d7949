// SPDX-License-Identifier: Apache-2.0
//
// UCX with injected failures, libucp-faulty.so: forwards each call to the real library, unless a
// rule makes it fail. The real library is FAULTY_UCX_REAL, a file, or the system's libucp.so.0; the
// first UCX call opens it.
//
// Rules are FUNCTION:N=CODE, separated by commas, in the variable FAULTY_UCX or passed to
// faulty_ucx_fail():
//
//   ucp_init_version:1=-4           the next call fails with UCS_ERR_NO_MEMORY without reaching UCX
//   ucp_am_send_nbx:3+=-4           the third call from now and all later ones fail
//   ucp_am_send_nbx:1=-3:later      returns a request, which the worker's next progress completes
//                                   with the code
//   ucp_am_send_nbx:1=0:never       returns a request that completes only when its endpoint is
//                                   closed, as cancelled
//   ucp_am_send_nbx:1=0:last        returns a request that completes as cancelled when its worker
//                                   is destroyed, after its endpoint
//   ucp_worker_progress:1=-25       calls the error handler of the worker's oldest open endpoint
//                                   with the code; counts calls only while such an endpoint exists
//
// ucp_ep_close_nbx closes and ucp_mem_unmap unmaps even when a rule makes them fail; `later`,
// `never` and `last` apply only to functions that return requests.
//
// Threading: any thread.
#ifndef ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_
#define ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Replaces all rules and restarts the counts of calls. 0: set; -1: not understood.
int faulty_ucx_fail(const char* rules);
// Returns how often a rule has struck since.
uint64_t faulty_ucx_struck(void);

// UCX objects that this process has not released.
typedef struct FaultyUcxCounts {
  size_t configs;
  size_t workers;
  size_t addresses;
  size_t endpoints;
  size_t requests;
  size_t data;    // active message data kept beyond the callback
  size_t mapped;  // registered memory
  size_t packed;  // packed keys, in UCX's buffers
  size_t keys;    // unpacked remote keys
} FaultyUcxCounts;
void faulty_ucx_counts(FaultyUcxCounts* counts);

// Returns the calls so far of a function that may fail; UINT64_MAX: no function of that name.
uint64_t faulty_ucx_calls(const char* function);

#ifdef __cplusplus
}
#endif

#endif  // ONEHOP_TESTS_FAULTY_UCX_CONTROL_H_
