// SPDX-License-Identifier: Apache-2.0
//
// Controls of the fake CUDA driver beyond CUDA: object counts, injected failures, memory contents,
// held streams. Tests look the functions up in libonehop_fake_cuda.so by dlsym. All functions
// affect this process only.
//
// Environment, read at the first call:
//   FAKE_CUDA="devices=2,memory=1G,p2p=all,atomics=all,name=Fake GPU,numa=0,ipc=on,
//             vmm=on,blocking=on,delay_us=0,code=90,fail=…"
//     devices   1..64                                            (1)
//     memory    bytes of each device; K, M, G                    (1G)
//     p2p       all, none, or pairs of physical devices: 0-1+2-3 (all)
//     atomics   all; none: links between devices have none of    (all)
//               their own, below; lost: likewise, but the
//               driver says that they have
//     name      of every device                                  (Fake GPU)
//     numa      node of each device: 0+0+1+1, or none            (0)
//     ipc, vmm  on or off: legacy IPC, VMM                       (on)
//     blocking  on or off: calls wait for running kernels,       (on)
//               below; device: a first launch waits for more
//     delay_us  before each operation of a stream                (0)
//     code      architecture that the kernels are compiled for   (90)
//     fail      WHERE:N:CODE, may be given several times; see fake_cuda_fail
//   FAKE_CUDA_STATE=PATH  the session: processes with the same path share the devices' memory.
//   CUDA_VISIBLE_DEVICES  ordinals or "GPU-…" UUIDs, as the real driver reads it.
//   FAKE_NVML: see nvml.cc.
// Anything else in FAKE_CUDA ends the process with a message.
//
// Kernels: every module has those of the library, and fake_spin. Kernels of different streams run
// at once. As drivers do, some calls wait until, for a moment, no kernel of the context runs,
// however long that takes: cuModuleLoadData, cuModuleUnload, a function's first launch, cuMemFree
// and cuMemHostUnregister (the context is that of the memory), cuCtxSynchronize. Others pass, such
// as allocations, copies, streams, events, pools, and later launches. When a context is destroyed
// or the process ends, kernels are killed.
//
// With blocking=device a function's first launch waits until its context has nothing left to do,
// streams that wait for a word included, as drivers were seen to do with lazy loading. It holds a
// lock of the process meanwhile: every call of another thread that needs a context waits for it,
// but for cuStreamSynchronize and cuEventSynchronize. Drivers may let more pass.
//
// Over a link without native atomics, as PCIe is, the kernels of the stream domain add to a word of
// the other device by a read and a write, some time later, and a store of 16 bytes arrives as two
// of 8, the one with the flag first.
//
// Graphs are captured from streams, and launched: each launch is one operation of its stream, and
// one of its graph. Nodes without an order run at once, and are operations: they are counted, fail,
// are delayed, and as kernels run and are killed, as those of streams. Not here: child graphs,
// memory nodes, graphs made by hand.
//
// Where it is stricter than a GPU, on purpose: cuMemFree does not wait for copies, so a copy that
// is still queued fails; a stream write accepts only device addresses, and those of registered host
// memory differ from the host's; no handle but a stream's is used twice, and that one at once; what
// needs a context needs a current one even if a stream or an event would tell it; VMM and pool
// memory needs access rights also for copies; only its first launch loads a function, where drivers
// may do so in cuModuleGetFunction; a per-thread default stream cannot be captured; a launch in
// clusters, or one that may begin early, of code older than 90, which knows neither, fails.
//
// Threading: any thread.
#ifndef ONEHOP_TESTS_FAKE_CUDA_CONTROL_H_
#define ONEHOP_TESTS_FAKE_CUDA_CONTROL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FakeCudaCounts {
  size_t contexts;  // retains of primary contexts that were not released
  size_t streams;   // without default streams
  size_t events;
  size_t allocations;  // cuMemAlloc, managed, host, pool
  size_t imports;      // legacy handles, pool pointers; not references to one import
  size_t host_registrations;
  size_t reservations;  // of VMM addresses
  size_t mappings;      // of VMM memory
  size_t vmm_handles;   // handles of created and imported VMM memory that were not released
  size_t pools;         // created and imported
  size_t modules;
  size_t graphs;
  size_t graph_execs;
} FakeCudaCounts;

// Live objects of this process.
void fake_cuda_counts(FakeCudaCounts* counts);

// Returns the calls of an entry point, by its exported symbol, since the start. UINT64_MAX: no such
// symbol.
uint64_t fake_cuda_calls(const char* symbol);

// Makes the nth visit of `where` from now (1: the next; 0: every one) fail with `code`. where: an
// exported symbol, or "copy" or "operation": the nth executed copy, or operation of any sort, puts
// the context into the sticky error `code`. 0: set; -1: no such place.
int fake_cuda_fail(const char* where, uint64_t nth, int code);
void fake_cuda_clear_failures(void);

// Copies between device memory (or any memory that the fake knows) and `bytes`, immediately. 0:
// done; -1: not live memory.
int fake_cuda_peek(uint64_t address, void* bytes, size_t size);
int fake_cuda_poke(uint64_t address, const void* bytes, size_t size);

// A held stream starts no further operation, launches of graphs included; queued work waits.
// stream: a CUstream; default streams are those of the current context and thread. 0: done; -1: no
// such stream. Destroying a stream releases it.
int fake_cuda_hold(void* stream);
int fake_cuda_release(void* stream);
// Holds all streams of the process, also those still to be created; independent of the above.
void fake_cuda_hold_all(void);
void fake_cuda_release_all(void);

// Returns the nodes of the graph that `stream` is being captured into; events make no nodes. -1:
// the stream is not being captured.
int64_t fake_cuda_captured(void* stream);

// Returns the blocks of the last launch of a kernel in this process, captured or not. 0: none.
unsigned fake_cuda_blocks(const char* kernel);

// Returns the kernels that are running; queued kernels do not count.
size_t fake_cuda_running(void);
// Returns the calls blocked by running kernels or by the device; calls that wait for such a call do
// not count.
size_t fake_cuda_blocked(void);

// A kernel for tests, in the place of an application's: it runs until the word is not 0. Its
// argument is a FakeCudaSpin.
#define FAKE_CUDA_SPIN "fake_spin"
typedef struct FakeCudaSpin {
  uint64_t word;      // device address of 8 bytes, in device memory or mapped host memory
  uint64_t started;   // likewise; set to 1 when the kernel starts; 0: unused
  uint64_t limit_ns;  // the kernel ends after this time in any case; 0: no limit
} FakeCudaSpin;

// Changes delay_us.
void fake_cuda_delay(unsigned microseconds);

#ifdef __cplusplus
}
#endif

#endif  // ONEHOP_TESTS_FAKE_CUDA_CONTROL_H_
