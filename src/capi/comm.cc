// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

extern "C" {

oh_status oh_unique_id(void* id, size_t* size) {
  OH_CHECK_ARGUMENT(size);
  // The caller queries the size only: do not start a server.
  if (!id || *size < Address::kMaxBytes) {
    return answer(copy_out(Bytes(Address::kMaxBytes), nullptr, size));
  }
  Result<Config> config = Config::from_environment();
  OH_REPORT_IF_ERROR(config.status());
  Result<const Crypto*> crypto = Crypto::open(config->libcrypto);
  OH_REPORT_IF_ERROR(crypto.status());
  Result<std::shared_ptr<Node>> node = Node::get(*config);
  OH_REPORT_IF_ERROR(node.status());
  Result<Bytes> made = rendezvous_unique_id(*node, **crypto, *config);
  OH_REPORT_IF_ERROR(made.status());
  return answer(copy_out(*made, id, size));
}

oh_status oh_comm_create(const oh_comm_options* given, oh_comm** comm) {
  return oh_comm_create_cancellable(given, nullptr, comm);
}

oh_status oh_comm_create_cancellable(const oh_comm_options* given, const int* cancelled,
                                     oh_comm** comm) {
  OH_CHECK_ARGUMENT(given);
  OH_CHECK_ARGUMENT(comm);
  oh_comm_options options;
  OH_REPORT_IF_ERROR(read_options(given, &options));
  Config config;
  const oh_endpoint_options* endpoint = options.endpoint.struct_size ? &options.endpoint : nullptr;
  Result<EndpointOptions> checked = endpoint_options(endpoint, &config);
  OH_REPORT_IF_ERROR(checked.status());
  CommunicatorOptions ours;
  ours.rank = options.rank;
  ours.size = options.size;
  if (options.rendezvous) ours.rendezvous = options.rendezvous;
  if (options.unique_id) {
    const auto* bytes = static_cast<const uint8_t*>(options.unique_id);
    ours.unique_id.assign(bytes, bytes + options.unique_id_size);
  }
  Result<Deadline> deadline = deadline_of(options.timeout_ns, config);
  OH_REPORT_IF_ERROR(deadline.status());
  Result<std::shared_ptr<Communicator>> made =
      Communicator::create(config, *checked, ours, deadline->unless(cancelled));
  OH_REPORT_IF_ERROR(made.status());
  std::shared_ptr<Endpoint> owned = (*made)->endpoint();
  *comm = new oh_comm{std::move(*made), {std::move(owned)}};
  return OH_OK;
}

void oh_comm_close(oh_comm* comm) {
  if (comm) comm->comm->close();
}

void oh_comm_destroy(oh_comm* comm) {
  if (!comm || !comm->comm->endpoint()->is_of_this_process()) return;
  const AwaitsCallbacks end(*comm->comm->endpoint());
  comm->comm->close();
  delete comm;
}

uint32_t oh_comm_rank(oh_comm* comm) { return comm ? comm->comm->rank() : 0; }
uint32_t oh_comm_size(oh_comm* comm) { return comm ? comm->comm->size() : 0; }

oh_status oh_comm_peer(oh_comm* comm, int64_t rank, int64_t timeout_ns, oh_peer** peer) {
  OH_CHECK_ARGUMENT(comm);
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, comm->comm->endpoint()->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<std::shared_ptr<Peer>> found = comm->comm->peer(rank, *deadline);
  OH_REPORT_IF_ERROR(found.status());
  *peer = new oh_peer{comm->comm->endpoint(), std::move(*found)};
  return OH_OK;
}

oh_status oh_comm_reconnect(oh_comm* comm, int64_t rank, int64_t timeout_ns, const int* cancelled,
                            oh_peer** peer) {
  OH_CHECK_ARGUMENT(comm);
  OH_CHECK_ARGUMENT(peer);
  Result<Deadline> deadline = deadline_of(timeout_ns, comm->comm->endpoint()->config());
  OH_REPORT_IF_ERROR(deadline.status());
  Result<std::shared_ptr<Peer>> found = comm->comm->reconnect(rank, deadline->unless(cancelled));
  OH_REPORT_IF_ERROR(found.status());
  *peer = new oh_peer{comm->comm->endpoint(), std::move(*found)};
  return OH_OK;
}

oh_endpoint* oh_comm_endpoint(oh_comm* comm) { return comm ? &comm->endpoint : nullptr; }

oh_status oh_comm_barrier(oh_comm* comm, int64_t timeout_ns) {
  OH_CHECK_ARGUMENT(comm);
  OH_REPORT_IF_ERROR(comm->comm->endpoint()->usable());
  Result<Deadline> deadline = deadline_of(timeout_ns, comm->comm->endpoint()->config());
  OH_REPORT_IF_ERROR(deadline.status());
  return report(comm->comm->barrier(*deadline));
}

}  // extern "C"
