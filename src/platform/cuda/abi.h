// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver ABI that onehop uses: types, values and entry points. Declared here,
// so that the library builds without CUDA's headers; tests/unit/cuda_abi_test.cc compares the
// declarations with the headers where they are installed.
//
// Threading: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oh::cuda {

using Code = int;    // CUresult
using Device = int;  // an ordinal of this process: never compare it with another process's
using DevicePtr = uint64_t;
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using MemoryPool = struct MemoryPoolObject*;
using Graph = struct GraphObject*;
using GraphNode = struct GraphNodeObject*;
using GraphExec = struct GraphExecObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using AllocationHandle = uint64_t;  // of VMM memory

inline constexpr Code kSuccess = 0;
inline constexpr Code kInvalidValue = 1;
inline constexpr Code kOutOfMemory = 2;
inline constexpr Code kNotInitialized = 3;
inline constexpr Code kDeinitialized = 4;
inline constexpr Code kNoDevice = 100;
inline constexpr Code kInvalidDevice = 101;
inline constexpr Code kInvalidContext = 201;
inline constexpr Code kMapFailed = 205;
inline constexpr Code kPeerAccessUnsupported = 217;
inline constexpr Code kInvalidHandle = 400;
inline constexpr Code kNotFound = 500;
inline constexpr Code kNotReady = 600;
inline constexpr Code kIllegalAddress = 700;
inline constexpr Code kPeerAccessAlreadyEnabled = 704;
inline constexpr Code kContextIsDestroyed = 709;
inline constexpr Code kHostMemoryAlreadyRegistered = 712;
inline constexpr Code kHostMemoryNotRegistered = 713;
inline constexpr Code kLaunchFailed = 719;
inline constexpr Code kNotPermitted = 800;
inline constexpr Code kNotSupported = 801;
inline constexpr Code kStreamCaptureUnsupported = 900;
inline constexpr Code kStreamCaptureImplicit = 906;
inline constexpr Code kUnknown = 999;

struct Uuid {
  char bytes[16];
};
struct IpcHandle {
  char bytes[64];
};
struct PoolPointer {  // CUmemPoolPtrExportData
  unsigned char bytes[64];
};

enum PointerAttribute : int {
  kAttributeContext = 1,
  kAttributeMemoryType = 2,
  kAttributeDevicePointer = 3,
  kAttributeBufferId = 7,
  kAttributeIsManaged = 8,
  kAttributeDeviceOrdinal = 9,
  kAttributeLegacyIpcCapable = 10,
  kAttributeRangeStart = 11,
  kAttributeRangeSize = 12,
  kAttributeMapped = 13,
  kAttributeAllowedHandleTypes = 14,
  kAttributeMemoryPool = 17,
  kAttributeMappingSize = 18,
  kAttributeMappingBase = 19,
};
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

enum DeviceAttribute : int {
  kDeviceProcessors = 16,
  kDeviceComputeMode = 20,
  kDevicePciBus = 33,
  kDevicePciDevice = 34,
  kDevicePciDomain = 50,
  kDeviceMajor = 75,
  kDeviceMinor = 76,
  kDeviceStreamMemOps64 = 122,
  kDeviceMps = 133,
  kDeviceHostNuma = 134,
};

enum FunctionAttribute : int {
  kFunctionMostThreads = 0,
  kFunctionVirtualArchitecture = 5,  // of the PTX it was compiled from: 90 for compute_90
};
inline constexpr int kP2pNativeAtomics = 3;  // CUdevice_P2PAttribute

enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalid = 2 };

enum LaunchAttributeId : int {
  kLaunchCluster = 4,
  kLaunchProgrammaticSerialization = 6,
  kLaunchMemSyncDomain = 10,
};
// Values of kLaunchMemSyncDomain. A fence waits for writes of kernels of its own domain.
inline constexpr int kMemSyncDomainDefault = 0;
inline constexpr int kMemSyncDomainRemote = 1;

inline constexpr uint64_t kStreamLegacy = 1;  // a handle: the same stream as null
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kStreamWriteDefault = 0;
inline constexpr unsigned kStreamWaitAtLeast = 0;

inline constexpr int kHandleTypePosixFd = 1;
inline constexpr int kHandleTypeFabric = 8;
inline constexpr int kLocationDevice = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;

struct Location {
  int type;
  int id;
};
struct AllocationProp {
  int type;
  int requested_handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};
struct AccessDesc {
  Location location;
  int flags;
};
struct PoolProps {
  int type;
  int handle_types;
  Location location;
  void* win32;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};

union alignas(8) LaunchAttributeValue {
  char bytes[64];
  struct {
    unsigned x;
    unsigned y;
    unsigned z;
  } cluster;                       // kLaunchCluster: blocks; they divide the grid's
  int programmatic_serialization;  // not 0: may start before the previous kernel has ended
  int mem_sync_domain;
};
struct LaunchAttribute {
  int id;
  char padding[4];
  LaunchAttributeValue value;
};
struct LaunchConfig {
  unsigned grid_x;
  unsigned grid_y;
  unsigned grid_z;
  unsigned block_x;
  unsigned block_y;
  unsigned block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// X(name, exported symbol, parameters). The first list is required. Entries of the second are null
// in older drivers. The third is for programs that allocate all kinds of memory: tests, benchmarks,
// the doctor.
#define OH_CUDA_FUNCTIONS(X)                                                                     \
  X(init, cuInit, (unsigned))                                                                    \
  X(driver_version, cuDriverGetVersion, (int*))                                                  \
  X(error_name, cuGetErrorName, (Code, const char**))                                            \
  X(error_string, cuGetErrorString, (Code, const char**))                                        \
  X(device_count, cuDeviceGetCount, (int*))                                                      \
  X(device_get, cuDeviceGet, (Device*, int))                                                     \
  X(device_uuid, cuDeviceGetUuid_v2, (Uuid*, Device))                                            \
  X(device_name, cuDeviceGetName, (char*, int, Device))                                          \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, Device))                                 \
  X(device_can_access_peer, cuDeviceCanAccessPeer, (int*, Device, Device))                       \
  X(device_p2p_attribute, cuDeviceGetP2PAttribute, (int*, int, Device, Device))                  \
  X(primary_retain, cuDevicePrimaryCtxRetain, (Context*, Device))                                \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (Device))                                     \
  X(primary_state, cuDevicePrimaryCtxGetState, (Device, unsigned*, int*))                        \
  X(context_get_current, cuCtxGetCurrent, (Context*))                                            \
  X(context_push, cuCtxPushCurrent_v2, (Context))                                                \
  X(context_pop, cuCtxPopCurrent_v2, (Context*))                                                 \
  X(context_enable_peer, cuCtxEnablePeerAccess, (Context, unsigned))                             \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int*))                            \
  X(stream_create, cuStreamCreate, (Stream*, unsigned))                                          \
  X(stream_destroy, cuStreamDestroy_v2, (Stream))                                                \
  X(stream_query, cuStreamQuery, (Stream))                                                       \
  X(stream_synchronize, cuStreamSynchronize, (Stream))                                           \
  X(stream_wait_event, cuStreamWaitEvent, (Stream, Event, unsigned))                             \
  X(stream_write64, cuStreamWriteValue64_v2, (Stream, DevicePtr, uint64_t, unsigned))            \
  X(stream_wait64, cuStreamWaitValue64_v2, (Stream, DevicePtr, uint64_t, unsigned))              \
  X(stream_is_capturing, cuStreamIsCapturing, (Stream, int*))                                    \
  X(stream_capture_info, cuStreamGetCaptureInfo_v2,                                              \
    (Stream, int*, uint64_t*, Graph*, const GraphNode**, size_t*))                               \
  X(event_create, cuEventCreate, (Event*, unsigned))                                             \
  X(event_destroy, cuEventDestroy_v2, (Event))                                                   \
  X(event_record, cuEventRecord, (Event, Stream))                                                \
  X(event_query, cuEventQuery, (Event))                                                          \
  X(event_synchronize, cuEventSynchronize, (Event))                                              \
  X(memcpy_async, cuMemcpyAsync, (DevicePtr, DevicePtr, size_t, Stream))                         \
  X(memset8_async, cuMemsetD8Async, (DevicePtr, unsigned char, size_t, Stream))                  \
  X(memory_alloc, cuMemAlloc_v2, (DevicePtr*, size_t))                                           \
  X(memory_free, cuMemFree_v2, (DevicePtr))                                                      \
  X(memory_info, cuMemGetInfo_v2, (size_t*, size_t*))                                            \
  X(pointer_attributes, cuPointerGetAttributes, (unsigned, int*, void**, DevicePtr))             \
  X(host_register, cuMemHostRegister_v2, (void*, size_t, unsigned))                              \
  X(host_unregister, cuMemHostUnregister, (void*))                                               \
  X(host_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePtr*, void*, unsigned))            \
  X(ipc_export, cuIpcGetMemHandle, (IpcHandle*, DevicePtr))                                      \
  X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePtr*, IpcHandle, unsigned))                          \
  X(ipc_close, cuIpcCloseMemHandle, (DevicePtr))                                                 \
  X(vmm_retain, cuMemRetainAllocationHandle, (AllocationHandle*, void*))                         \
  X(vmm_release, cuMemRelease, (AllocationHandle))                                               \
  X(vmm_export, cuMemExportToShareableHandle, (void*, AllocationHandle, int, uint64_t))          \
  X(vmm_import, cuMemImportFromShareableHandle, (AllocationHandle*, void*, int))                 \
  X(vmm_properties, cuMemGetAllocationPropertiesFromHandle, (AllocationProp*, AllocationHandle)) \
  X(vmm_granularity, cuMemGetAllocationGranularity, (size_t*, const AllocationProp*, int))       \
  X(vmm_reserve, cuMemAddressReserve, (DevicePtr*, size_t, size_t, DevicePtr, uint64_t))         \
  X(vmm_unreserve, cuMemAddressFree, (DevicePtr, size_t))                                        \
  X(vmm_map, cuMemMap, (DevicePtr, size_t, size_t, AllocationHandle, uint64_t))                  \
  X(vmm_unmap, cuMemUnmap, (DevicePtr, size_t))                                                  \
  X(vmm_set_access, cuMemSetAccess, (DevicePtr, size_t, const AccessDesc*, size_t))              \
  X(pool_export, cuMemPoolExportToShareableHandle, (void*, MemoryPool, int, uint64_t))           \
  X(pool_import, cuMemPoolImportFromShareableHandle, (MemoryPool*, void*, int, uint64_t))        \
  X(pool_export_pointer, cuMemPoolExportPointer, (PoolPointer*, DevicePtr))                      \
  X(pool_import_pointer, cuMemPoolImportPointer, (DevicePtr*, MemoryPool, PoolPointer*))         \
  X(pool_set_access, cuMemPoolSetAccess, (MemoryPool, const AccessDesc*, size_t))                \
  X(pool_destroy, cuMemPoolDestroy, (MemoryPool))                                                \
  X(module_load, cuModuleLoadData, (Module*, const void*))                                       \
  X(module_unload, cuModuleUnload, (Module))                                                     \
  X(module_function, cuModuleGetFunction, (Function*, Module, const char*))                      \
  X(function_attribute, cuFuncGetAttribute, (int*, int, Function))                               \
  X(launch_kernel, cuLaunchKernel,                                                               \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,     \
     void**, void**))                                                                            \
  X(launch_kernel_ex, cuLaunchKernelEx, (const LaunchConfig*, Function, void**, void**))

#define OH_CUDA_NEWER_FUNCTIONS(X)                                 \
  X(stream_id, cuStreamGetId, (Stream, uint64_t*))      /* 12.0 */ \
  X(context_id, cuCtxGetId, (Context, uint64_t*))       /* 12.0 */ \
  X(context_record, cuCtxRecordEvent, (Context, Event)) /* 12.5 */

#define OH_CUDA_TEST_FUNCTIONS(X)                                                             \
  X(context_synchronize, cuCtxSynchronize, ())                                                \
  X(memcpy_sync, cuMemcpy, (DevicePtr, DevicePtr, size_t))                                    \
  X(memset8, cuMemsetD8_v2, (DevicePtr, unsigned char, size_t))                               \
  X(memory_alloc_managed, cuMemAllocManaged, (DevicePtr*, size_t, unsigned))                  \
  X(host_alloc, cuMemHostAlloc, (void**, size_t, unsigned))                                   \
  X(host_free, cuMemFreeHost, (void*))                                                        \
  X(vmm_create, cuMemCreate, (AllocationHandle*, size_t, const AllocationProp*, uint64_t))    \
  X(pool_create, cuMemPoolCreate, (MemoryPool*, const PoolProps*))                            \
  X(pool_default, cuDeviceGetDefaultMemPool, (MemoryPool*, Device))                           \
  X(alloc_async, cuMemAllocAsync, (DevicePtr*, size_t, Stream))                               \
  X(alloc_from_pool_async, cuMemAllocFromPoolAsync, (DevicePtr*, size_t, MemoryPool, Stream)) \
  X(free_async, cuMemFreeAsync, (DevicePtr, Stream))                                          \
  X(launch_host_func, cuLaunchHostFunc, (Stream, void (*)(void*), void*))                     \
  X(pool_trim, cuMemPoolTrimTo, (MemoryPool, size_t))                                         \
  X(capture_begin, cuStreamBeginCapture_v2, (Stream, int))                                    \
  X(capture_end, cuStreamEndCapture, (Stream, Graph*))                                        \
  X(graph_destroy, cuGraphDestroy, (Graph))                                                   \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (GraphExec*, Graph, uint64_t))            \
  X(graph_launch, cuGraphLaunch, (GraphExec, Stream))                                         \
  X(graph_exec_destroy, cuGraphExecDestroy, (GraphExec))                                      \
  X(event_elapsed, cuEventElapsedTime, (float*, Event, Event))

}  // namespace oh::cuda
