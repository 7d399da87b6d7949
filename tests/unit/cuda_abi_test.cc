// SPDX-License-Identifier: Apache-2.0
//
// Compares our declarations of the CUDA driver's binary interface with CUDA's header. Compiled if
// CMake finds one.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "platform/cuda/abi.h"

namespace {

namespace ours = oh::cuda;

#define SAME(a, b) static_assert(static_cast<long long>(a) == static_cast<long long>(b))
#define SAME_SIZE(a, b) static_assert(sizeof(a) == sizeof(b) && alignof(a) == alignof(b))
#define SAME_FIELD(a, f, b, g) \
  static_assert(offsetof(a, f) == offsetof(b, g) && sizeof(a::f) == sizeof(b::g))

// Codes.
SAME(ours::kSuccess, CUDA_SUCCESS);
SAME(ours::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(ours::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(ours::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(ours::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
SAME(ours::kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME(ours::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(ours::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME(ours::kMapFailed, CUDA_ERROR_MAP_FAILED);
SAME(ours::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(ours::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(ours::kNotFound, CUDA_ERROR_NOT_FOUND);
SAME(ours::kNotReady, CUDA_ERROR_NOT_READY);
SAME(ours::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(ours::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(ours::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(ours::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(ours::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(ours::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
SAME(ours::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
SAME(ours::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME(ours::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(ours::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(ours::kUnknown, CUDA_ERROR_UNKNOWN);

// Attributes of pointers and devices.
SAME(ours::kAttributeContext, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(ours::kAttributeMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(ours::kAttributeDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME(ours::kAttributeBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(ours::kAttributeIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(ours::kAttributeDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(ours::kAttributeLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(ours::kAttributeRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(ours::kAttributeRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(ours::kAttributeMapped, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(ours::kAttributeAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(ours::kAttributeMemoryPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME(ours::kAttributeMappingSize, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME(ours::kAttributeMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME(ours::kMemoryTypeHost, CU_MEMORYTYPE_HOST);
SAME(ours::kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
SAME(ours::kDeviceComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(ours::kDevicePciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(ours::kDevicePciDevice, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(ours::kDevicePciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(ours::kDeviceMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(ours::kDeviceMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(ours::kDeviceStreamMemOps64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(ours::kDeviceMps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
SAME(ours::kDeviceHostNuma, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
SAME(ours::kFunctionMostThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(ours::kFunctionVirtualArchitecture, CU_FUNC_ATTRIBUTE_PTX_VERSION);

// Flags.
SAME(ours::kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(ours::kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(ours::kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(ours::kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(ours::kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(ours::kCaptureInvalid, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(ours::kLaunchCluster, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(ours::kLaunchProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(ours::kLaunchMemSyncDomain, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
SAME(ours::kMemSyncDomainDefault, CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT);
SAME(ours::kMemSyncDomainRemote, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
SAME(ours::kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(ours::kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(ours::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(ours::kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(ours::kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(ours::kStreamWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
SAME(ours::kHandleTypePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(ours::kHandleTypeFabric, CU_MEM_HANDLE_TYPE_FABRIC);
SAME(ours::kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(ours::kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(ours::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(ours::kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);

// Types.
SAME_SIZE(ours::Code, CUresult);
SAME_SIZE(ours::Device, CUdevice);
SAME_SIZE(ours::DevicePtr, CUdeviceptr);
SAME_SIZE(ours::Context, CUcontext);
SAME_SIZE(ours::Stream, CUstream);
SAME_SIZE(ours::Event, CUevent);
SAME_SIZE(ours::MemoryPool, CUmemoryPool);
SAME_SIZE(ours::Graph, CUgraph);
SAME_SIZE(ours::GraphNode, CUgraphNode);
SAME_SIZE(ours::GraphExec, CUgraphExec);
SAME_SIZE(ours::AllocationHandle, CUmemGenericAllocationHandle);
SAME_SIZE(ours::Uuid, CUuuid);
SAME_SIZE(ours::IpcHandle, CUipcMemHandle);
SAME_SIZE(ours::PoolPointer, CUmemPoolPtrExportData);
SAME_SIZE(ours::Location, CUmemLocation);
SAME_FIELD(ours::Location, type, CUmemLocation, type);
SAME_FIELD(ours::Location, id, CUmemLocation, id);
SAME_SIZE(ours::AllocationProp, CUmemAllocationProp);
SAME_FIELD(ours::AllocationProp, type, CUmemAllocationProp, type);
SAME_FIELD(ours::AllocationProp, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(ours::AllocationProp, location, CUmemAllocationProp, location);
SAME_FIELD(ours::AllocationProp, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(ours::AllocationProp, flags, CUmemAllocationProp, allocFlags);
SAME_SIZE(ours::AccessDesc, CUmemAccessDesc);
SAME_FIELD(ours::AccessDesc, location, CUmemAccessDesc, location);
SAME_FIELD(ours::AccessDesc, flags, CUmemAccessDesc, flags);
SAME_SIZE(ours::PoolProps, CUmemPoolProps);
SAME_FIELD(ours::PoolProps, type, CUmemPoolProps, allocType);
SAME_FIELD(ours::PoolProps, handle_types, CUmemPoolProps, handleTypes);
SAME_FIELD(ours::PoolProps, location, CUmemPoolProps, location);
SAME_FIELD(ours::PoolProps, win32, CUmemPoolProps, win32SecurityAttributes);
SAME_FIELD(ours::PoolProps, max_size, CUmemPoolProps, maxSize);
SAME_FIELD(ours::PoolProps, usage, CUmemPoolProps, usage);
SAME_FIELD(ours::PoolProps, reserved, CUmemPoolProps, reserved);
SAME_SIZE(ours::LaunchAttributeValue, CUlaunchAttributeValue);
SAME_FIELD(ours::LaunchAttributeValue, cluster, CUlaunchAttributeValue, clusterDim);
SAME_FIELD(ours::LaunchAttributeValue, programmatic_serialization, CUlaunchAttributeValue,
           programmaticStreamSerializationAllowed);
SAME_FIELD(ours::LaunchAttributeValue, mem_sync_domain, CUlaunchAttributeValue, memSyncDomain);
SAME_SIZE(ours::LaunchAttribute, CUlaunchAttribute);
SAME_FIELD(ours::LaunchAttribute, id, CUlaunchAttribute, id);
SAME_FIELD(ours::LaunchAttribute, value, CUlaunchAttribute, value);
SAME_SIZE(ours::LaunchConfig, CUlaunchConfig);
SAME_FIELD(ours::LaunchConfig, grid_x, CUlaunchConfig, gridDimX);
SAME_FIELD(ours::LaunchConfig, grid_y, CUlaunchConfig, gridDimY);
SAME_FIELD(ours::LaunchConfig, grid_z, CUlaunchConfig, gridDimZ);
SAME_FIELD(ours::LaunchConfig, block_x, CUlaunchConfig, blockDimX);
SAME_FIELD(ours::LaunchConfig, block_y, CUlaunchConfig, blockDimY);
SAME_FIELD(ours::LaunchConfig, block_z, CUlaunchConfig, blockDimZ);
SAME_FIELD(ours::LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(ours::LaunchConfig, stream, CUlaunchConfig, hStream);
SAME_FIELD(ours::LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME_FIELD(ours::LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);

// Whether two parameters are passed alike: integers of one size (a code, an enumeration, a handle),
// pointers, or structures of one size.
template <typename A, typename B>
constexpr bool kAlike = sizeof(A) == sizeof(B) && std::is_class_v<A> == std::is_class_v<B> &&
                        std::is_floating_point_v<A> == std::is_floating_point_v<B>;
template <typename A, typename B>
constexpr bool kSameCall = false;
template <typename R, typename... A, typename S, typename... B>
constexpr bool kSameCall<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return kAlike<R, S> && (kAlike<A, B> && ...);
  } else {
    return false;
  }
}();

}  // namespace

// Drivers export the older versions, too. CUDA 13's header declares only the newest, which drivers
// before 12.3 lack.
#if CUDA_VERSION >= 13000
extern "C" CUresult cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*,
                                              CUgraph*, const CUgraphNode**, size_t*);
#endif

// Every entry point has the parameters of the header.
namespace oh::cuda {
#define SAME_CALL(name, symbol, parameters) \
  static_assert(kSameCall<Code(*) parameters, decltype(&::symbol)>, #symbol);
OH_CUDA_FUNCTIONS(SAME_CALL)
OH_CUDA_NEWER_FUNCTIONS(SAME_CALL)
OH_CUDA_TEST_FUNCTIONS(SAME_CALL)
}  // namespace oh::cuda

namespace {

TEST(CudaAbiTest, IsThatOfTheHeader) {
  // Everything was asserted above; this records the header's version in the report.
  RecordProperty("cuda_version", CUDA_VERSION);
  EXPECT_GE(CUDA_VERSION, 12000);
}

}  // namespace
