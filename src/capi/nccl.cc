// SPDX-License-Identifier: Apache-2.0
//
// The NCCL-style API, implemented on the C API.
#include "onehop/nccl.h"

#include <numeric>
#include <vector>

#include "base/sync.h"
#include "capi/handles.h"
#include "platform/cuda/current.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

struct ohComm {
  explicit ohComm(oh_comm* made) : comm(made), peers(oh_comm_size(made)) {}
  ~ohComm() {
    for (oh_peer* peer : peers) {
      if (peer) oh_peer_release(peer);
    }
    oh_comm_destroy(comm);
  }
  size_t size() const { return oh_comm_size(comm); }

  oh_comm* const comm;
  Mutex mutex;
  // Indexed by rank; NULL: not used yet.
  std::vector<oh_peer*> peers OH_GUARDED_BY(mutex);
  ohResult_t failure OH_GUARDED_BY(mutex) = ohSuccess;
};

namespace {

constexpr size_t kSizes[ohNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// A unique id is stored as its length (uint16_t) followed by its bytes.
constexpr size_t kMostOfId = OH_UNIQUE_ID_BYTES - sizeof(uint16_t);

ohResult_t result_of(oh_status status) {
  switch (status) {
    case OH_OK:
      return ohSuccess;
    case OH_IN_PROGRESS:
    case OH_AGAIN:
      return ohInProgress;
    case OH_ERR_INVALID:
    case OH_ERR_RANGE:
      return ohInvalidArgument;
    case OH_ERR_TRUNCATED:
    case OH_ERR_RETIRED:
    case OH_ERR_CLOSED:
    case OH_ERR_FORKED:
      return ohInvalidUsage;
    case OH_ERR_DEVICE:
      return ohUnhandledCudaError;
    case OH_ERR_PROTOCOL:
      return ohInternalError;
    case OH_ERR_TIMEOUT:
      return ohRemoteError;
    default:
      return oh_status_scope(status) == OH_SCOPE_LINK ? ohRemoteError : ohSystemError;
  }
}
ohResult_t result_of(const Status& status) { return result_of(report(status)); }

#define OH_CHECK_NCCL(argument) \
  if (!(argument)) return result_of(null_argument(__func__, #argument))

// The calling thread's current device, in the format of endpoint options.
Result<std::string> device_of_thread() {
  OH_ASSIGN_OR_RETURN(Config config, Config::from_environment());
  OH_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::open(config.cuda_library));
  OH_ASSIGN_OR_RETURN(int ordinal, cuda::current_device(*driver));
  return strf("cuda:%d", ordinal);
}

Result<uint16_t> length_of(const ohUniqueId& id) {
  uint16_t length = 0;
  std::memcpy(&length, id.internal, sizeof(length));
  if (length > 0 && length <= kMostOfId) return length;
  return error(OH_ERR_INVALID, "a unique id of %u bytes: pass on what ohGetUniqueId gave", length);
}

// Finds the peer of a rank. The communicator owns it.
oh_status find_peer(ohComm_t comm, int rank, oh_peer** peer) {
  {
    MutexLock lock(comm->mutex);
    if (rank >= 0 && static_cast<size_t>(rank) < comm->peers.size()) *peer = comm->peers[rank];
  }
  if (*peer) return OH_OK;
  oh_peer* made = nullptr;
  oh_status status = oh_comm_peer(comm->comm, rank, OH_TIMEOUT_DEFAULT, &made);
  if (status != OH_OK) return status;
  MutexLock lock(comm->mutex);
  // Another thread may have stored the peer first.
  oh_peer*& place = comm->peers[rank];
  if (place) oh_peer_release(made);
  if (!place) place = made;
  *peer = place;
  return OH_OK;
}

// The size of a message in bytes.
Result<size_t> size_of(size_t count, ohDataType_t datatype) {
  if (datatype >= ohNumTypes) {
    return error(OH_ERR_INVALID, "datatype %d: there are 0 to %d", static_cast<int>(datatype),
                 ohNumTypes - 1);
  }
  size_t size = 0;
  if (!__builtin_mul_overflow(count, kSizes[datatype], &size)) return size;
  return error(OH_ERR_INVALID, "%zu elements of %zu bytes", count, kSizes[datatype]);
}

}  // namespace

extern "C" {

ohResult_t ohGetUniqueId(ohUniqueId* id) {
  OH_CHECK_NCCL(id);
  uint8_t bytes[Address::kMaxBytes];
  size_t size = sizeof(bytes);
  oh_status status = oh_unique_id(bytes, &size);
  if (status != OH_OK) return result_of(status);
  if (size > kMostOfId) {
    return result_of(error(OH_ERR_NO_RESOURCE,
                           "the unique id has %zu bytes, an ohUniqueId takes %zu: use oh_unique_id",
                           size, kMostOfId));
  }
  *id = {};
  auto length = static_cast<uint16_t>(size);
  std::memcpy(id->internal, &length, sizeof(length));
  std::memcpy(id->internal + sizeof(length), bytes, size);
  return ohSuccess;
}

ohResult_t ohCommInitRank(ohComm_t* comm, int nranks, ohUniqueId id, int rank) {
  return ohCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ohResult_t ohCommInitRankConfig(ohComm_t* comm, int nranks, ohUniqueId id, int rank,
                                const ohConfig_t* given) {
  OH_CHECK_NCCL(comm);
  ohConfig_t config;
  Status read = read_options(given, &config);
  if (!read.ok()) return result_of(read);
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return result_of(
        error(OH_ERR_INVALID, "rank %d of %d: ranks are 0 to nranks - 1", rank, nranks));
  }
  Result<uint16_t> length = length_of(id);
  if (!length.ok()) return result_of(length.status());
  Result<std::string> device = config.device ? std::string(config.device) : device_of_thread();
  if (!device.ok()) return result_of(device.status());

  oh_comm_options options{};
  options.struct_size = sizeof(options);
  options.rank = static_cast<uint32_t>(rank);
  options.size = static_cast<uint32_t>(nranks);
  options.unique_id = id.internal + sizeof(uint16_t);
  options.unique_id_size = *length;
  options.timeout_ns = config.timeout_ns;
  options.endpoint.struct_size = sizeof(options.endpoint);
  options.endpoint.device = device->c_str();
  oh_comm* made = nullptr;
  oh_status status = oh_comm_create(&options, &made);
  if (status != OH_OK) return result_of(status);
  *comm = new ohComm(made);
  return ohSuccess;
}

ohResult_t ohCommWarmup(ohComm_t comm, const int* ranks, size_t count) {
  OH_CHECK_NCCL(comm);
  std::vector<int32_t> chosen(ranks, ranks ? ranks + count : nullptr);
  if (!ranks) {
    chosen.resize(comm->size());
    std::iota(chosen.begin(), chosen.end(), 0);
    chosen.erase(chosen.begin() + oh_comm_rank(comm->comm));
  }
  return result_of(oh_comm_warmup(comm->comm, chosen.data(), chosen.size(), OH_TIMEOUT_DEFAULT));
}

ohResult_t ohCommDestroy(ohComm_t comm) {
  OH_CHECK_NCCL(comm);
  delete comm;
  return ohSuccess;
}

ohResult_t ohCommAbort(ohComm_t comm) { return ohCommDestroy(comm); }

ohResult_t ohCommGetAsyncError(ohComm_t comm, ohResult_t* async_error) {
  OH_CHECK_NCCL(comm);
  OH_CHECK_NCCL(async_error);
  MutexLock lock(comm->mutex);
  for (oh_peer* peer : comm->peers) {
    if (peer && comm->failure == ohSuccess) comm->failure = result_of(oh_peer_async_error(peer));
  }
  *async_error = comm->failure;
  return ohSuccess;
}

ohResult_t ohCommCount(ohComm_t comm, int* count) {
  OH_CHECK_NCCL(comm);
  OH_CHECK_NCCL(count);
  *count = static_cast<int>(comm->size());
  return ohSuccess;
}

ohResult_t ohCommUserRank(ohComm_t comm, int* rank) {
  OH_CHECK_NCCL(comm);
  OH_CHECK_NCCL(rank);
  *rank = static_cast<int>(oh_comm_rank(comm->comm));
  return ohSuccess;
}

ohResult_t ohSend(const void* sendbuff, size_t count, ohDataType_t datatype, int peer,
                  ohComm_t comm, void* stream) {
  OH_CHECK_NCCL(comm);
  Result<size_t> size = size_of(count, datatype);
  if (!size.ok()) return result_of(size.status());
  oh_peer* to = nullptr;
  oh_status status = find_peer(comm, peer, &to);
  if (status == OH_OK) status = oh_peer_stream_send(to, stream, sendbuff, *size, nullptr);
  return result_of(status);
}

ohResult_t ohRecv(void* recvbuff, size_t count, ohDataType_t datatype, int peer, ohComm_t comm,
                  void* stream) {
  OH_CHECK_NCCL(comm);
  Result<size_t> size = size_of(count, datatype);
  if (!size.ok()) return result_of(size.status());
  oh_peer* from = nullptr;
  oh_status status = find_peer(comm, peer, &from);
  if (status == OH_OK) status = oh_peer_stream_recv(from, stream, recvbuff, *size, nullptr);
  return result_of(status);
}

ohResult_t ohGroupStart(void) { return result_of(oh_group_begin()); }
ohResult_t ohGroupEnd(void) { return result_of(oh_group_end()); }

const char* ohGetErrorString(ohResult_t result) {
  switch (result) {
    case ohSuccess:
      return "no error";
    case ohUnhandledCudaError:
      return "the GPU's context has failed";
    case ohSystemError:
      return "no path, no memory, or a failed system call";
    case ohInternalError:
      return "internal error";
    case ohInvalidArgument:
      return "invalid argument";
    case ohInvalidUsage:
      return "invalid usage";
    case ohRemoteError:
      return "the peer is gone, or did not answer in time";
    case ohInProgress:
      return "not ended yet";
    case ohNumResults:
      break;
  }
  return "unknown result code";
}

}  // extern "C"
