// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.h"
#include "kernels/image.h"
#include "path/selection.h"

#ifndef ONEHOP_VERSION
#error "the build defines ONEHOP_VERSION"
#endif

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

extern "C" {

const char* oh_version(void) { return ONEHOP_VERSION; }

oh_status oh_kernel_image(const void** data, size_t* size) {
  OH_CHECK_ARGUMENT(data);
  OH_CHECK_ARGUMENT(size);
  ByteView image = kernel_image();
  if (image.empty()) {
    return report(error(OH_ERR_NOT_VIABLE, "this build has no CUDA kernels (ONEHOP_CUDA=OFF)"));
  }
  *data = image.data();
  *size = image.size();
  return OH_OK;
}

oh_status oh_config_get(size_t index, oh_config_entry* entry) {
  OH_CHECK_ARGUMENT(entry);
  std::span<const ConfigEntry> table = config_table();
  if (index >= table.size()) {
    return answer(error(OH_ERR_RANGE, "there are %zu variables", table.size()));
  }
  const ConfigEntry& found = table[index];
  oh_config_entry value{};
  value.name = found.name;
  value.type = found.type;
  value.allowed = found.allowed;
  value.standard = found.standard;
  value.meaning = found.meaning;
  value.hidden = found.hidden;
  return report(write_out(value, entry));
}

oh_status oh_transport_get(size_t index, oh_transport_info* info) {
  OH_CHECK_ARGUMENT(info);
  thread_local std::vector<TransportFact> facts;
  if (facts.empty() || index == 0) {
    Result<Config> config = Config::from_environment();
    if (!config.ok()) return report(config.status());
    facts = transports(config->cuda_library, config->ucx_library);
  }
  if (index >= facts.size()) {
    return answer(error(OH_ERR_RANGE, "there are %zu transports", facts.size()));
  }
  oh_transport_info value{};
  value.name = facts[index].name;
  value.viable = facts[index].viable;
  value.why = facts[index].why.c_str();
  return report(write_out(value, info));
}

oh_status oh_peer_get_info(oh_peer* peer, oh_peer_info* info) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(info);
  OH_REPORT_IF_ERROR(why_forked(*peer->endpoint));
  LinkFacts facts = peer->peer->facts();
  oh_peer_info value{};
  value.id = peer->peer->link().id;
  value.label = peer->peer->identity().label.c_str();
  value.rank = peer->peer->identity().rank;
  value.path = peer->peer->link().path;
  value.max_inline = facts.granted_inline;
  value.eager_max = facts.eager_max;
  value.eager_credit = facts.eager_credit;
  value.single_copy = facts.we_reach_them;
  value.target_progress = may_need_target(facts);
  value.unresponsive_ns = peer->peer->liveness().unresponsive_for();
  return report(write_out(value, info));
}

oh_status oh_peer_get_path(oh_peer* peer, size_t index, oh_path_row* row) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(row);
  OH_REPORT_IF_ERROR(why_forked(*peer->endpoint));
  thread_local std::vector<PathRow> rows;
  rows = explain(peer->peer->facts_of_gpus());
  if (index >= rows.size()) {
    return answer(error(OH_ERR_RANGE, "there are %zu rows", rows.size()));
  }
  const PathRow& found = rows[index];
  oh_path_row value{};
  value.operation = found.operation.c_str();
  value.source = memory_kind_name(found.source);
  value.target = memory_kind_name(found.target);
  value.first = found.first;
  value.last = found.last;
  value.path = found.choice.path;
  value.method = method_name(found.choice.method);
  value.why = found.choice.why.c_str();
  return report(write_out(value, row));
}

oh_status oh_peer_get_stats(oh_peer* peer, oh_peer_stats* stats) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(stats);
  OH_REPORT_IF_ERROR(why_forked(*peer->endpoint));
  Stats found = peer->peer->stats();
  oh_peer_stats value{};
  for (size_t path = 0; path < OH_PATH_COUNT; ++path) {
    const PathCount sent = found.sent(static_cast<oh_path>(path));
    const PathCount received = found.received(static_cast<oh_path>(path));
    value.sent_operations[path] = sent.operations;
    value.sent_bytes[path] = sent.bytes;
    value.received_operations[path] = received.operations;
    value.received_bytes[path] = received.bytes;
  }
  value.unexpected = found.unexpected;
  value.out_of_credit = found.out_of_credit;
  value.rtrs_used = found.rtrs_used;
  value.back_pressure = found.back_pressure;
  value.timeouts = found.timeouts;
  value.cancelled = found.cancelled;
  value.stream_put = found.stream_put;
  value.stream_staged = found.stream_staged;
  value.packed = found.packed;
  value.deferred = found.deferred;
  return report(write_out(value, stats));
}

oh_status oh_endpoint_get_pool(oh_endpoint* endpoint, oh_pool pool, oh_pool_stats* stats) {
  OH_CHECK_ARGUMENT(endpoint);
  OH_CHECK_ARGUMENT(stats);
  if (pool != OH_POOL_PIPELINE && pool != OH_POOL_STAGING) {
    return report(error(OH_ERR_INVALID, "there is no pool %d", static_cast<int>(pool)));
  }
  Endpoint& of = *endpoint->endpoint;
  OH_REPORT_IF_ERROR(why_forked(of));
  const PoolStats found =
      pool == OH_POOL_STAGING ? of.device().staging_stats() : of.ucx().pipeline_stats();
  oh_pool_stats value{};
  value.buffer_size = found.size;
  value.limit = found.limit;
  value.buffers = found.buffers;
  value.in_use = found.in_use;
  value.peak = found.peak;
  value.shortages = found.shortages;
  return report(write_out(value, stats));
}

}  // extern "C"
