// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_context.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "base/log.h"

namespace oh {
std::vector<UcxSetting> ucx_settings(bool rdma, unsigned minor) {
  std::vector<UcxSetting> settings;
  // Before 1.17 UCX reads options of transports from the environment only, and warns about these.
  bool of_transports = minor >= 17;
  // UCX must report a dead peer; without this option it would replace shared memory by tcp.
  if (of_transports) {
    settings.push_back({"POSIX_ERROR_HANDLING", "y"});
    // Creating a UCX endpoint blocks in connect() if the host does not answer. Limit that to three
    // seconds instead of minutes. (TCP_CONN_NB would not block, but UCX 1.13 and 1.22 abort the
    // process when such a connection fails: "pending_count == 0".)
    settings.push_back({"TCP_SYN_CNT", "1"});
  }
  // With RDMA, UCX's defaults are good.
  if (rdma) return settings;
  // Over tcp a rendezvous costs more than a copy; larger messages are sent zero-copy.
  settings.push_back({"RNDV_SCHEME", "put_zcopy"});
  // UCX 1.16 to 1.21 crash when a peer is lost during a rendezvous, unless UCX hooks into mmap()
  // (platform/ucx/library.cc): ucs_rcache_region_invalidate() gets no cache.
  const bool crashes = minor >= 16 && minor <= 21;
  settings.push_back({"RNDV_THRESH", crashes ? "inf" : "256k"});
  settings.push_back({"ZCOPY_THRESH", "16k"});
  if (of_transports) {
    settings.push_back({"TCP_TX_SEG_SIZE", "64k"});
    settings.push_back({"TCP_RX_SEG_SIZE", "128k"});
  }
  return settings;
}

Result<const UcxContext*> UcxContext::get(const std::string& library, bool rma) {
  struct Contexts {
    std::mutex mutex;
    std::map<std::pair<const ucx::Library*, bool>, std::unique_ptr<UcxContext>> all;
  };
  // Never destroyed: endpoints may still use it during process exit.
  static Contexts* const contexts = new Contexts;
  OH_ASSIGN_OR_RETURN(const ucx::Library* opened, ucx::Library::open(library));
  std::lock_guard lock(contexts->mutex);
  std::unique_ptr<UcxContext>& context = contexts->all[{opened, rma}];
  if (!context) {
    auto made = std::make_unique<UcxContext>();
    made->library_ = opened;
    made->rma_ = rma;
    OH_RETURN_IF_ERROR(made->start());
    context = std::move(made);
  }
  return const_cast<const UcxContext*>(context.get());
}

Status UcxContext::start() {
  ucx::Config config = nullptr;
  ucx::Code code = library_->config_read(nullptr, nullptr, &config);
  if (code != ucx::kOk) return library_->failure(code, ucx::symbol::config_read, "");
  for (const UcxSetting& setting : ucx_settings(ucx::has_rdma(), library_->minor)) {
    if (std::getenv(strf("UCX_%s", setting.name).c_str())) continue;
    // Ignore options that this version does not have.
    (void)library_->config_modify(config, setting.name, setting.value);
  }
  ucx::ContextParams params;
  params.fields = ucx::ContextParams::kFeatures | ucx::ContextParams::kSharedByThreads |
                  ucx::ContextParams::kName;
  params.features = ucx::kFeatureAm | ucx::kFeatureWakeup;
  if (rma_) params.features |= ucx::kFeatureRma;
  // Workers of several endpoints run in different threads, and any thread may map memory.
  params.mt_workers_shared = 1;
  params.name = "onehop";
  code = library_->init(ucx::kApiMajor, ucx::kApiMinor, &params, config, &handle_);
  library_->config_release(config);
  if (code != ucx::kOk) {
    Status failed = library_->failure(code, ucx::symbol::init, library_->path);
    return error(OH_ERR_NOT_VIABLE, "UCX cannot be used: %s", failed.text().c_str());
  }
  OH_LOG(kInfo, "UCX %s from %s", library_->version_text().c_str(), library_->path.c_str());
  return {};
}

}  // namespace oh
