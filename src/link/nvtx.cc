// SPDX-License-Identifier: Apache-2.0
#include "link/nvtx.h"

#include <cstdlib>

#include "base/log.h"

#if defined(OH_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace oh {

#if defined(OH_NVTX)
namespace {

nvtxEventAttributes_t attributes_of(const char* text) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text;
  return attributes;
}

}  // namespace

const Nvtx* Nvtx::open(const Config& config) {
  if (config.nvtx == "off") return nullptr;
  // The headers look for a tool at the first call. The domain lasts as long as the process.
  static const Nvtx* const attached = [] {
    void* const domain = nvtxDomainCreateA("onehop");
    return domain ? new Nvtx(domain) : nullptr;
  }();
  return attached;
}

uint64_t Nvtx::begin(const char* text, uint64_t bytes) const {
  nvtxEventAttributes_t attributes = attributes_of(text);
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = bytes;
  return nvtxDomainRangeStartEx(static_cast<nvtxDomainHandle_t>(domain_), &attributes);
}

void Nvtx::end(uint64_t range) const {
  nvtxDomainRangeEnd(static_cast<nvtxDomainHandle_t>(domain_), range);
}

void Nvtx::mark(const char* text) const {
  const nvtxEventAttributes_t attributes = attributes_of(text);
  nvtxDomainMarkEx(static_cast<nvtxDomainHandle_t>(domain_), &attributes);
}

#else

const Nvtx* Nvtx::open(const Config& config) {
  if (config.nvtx != "off" && std::getenv("NVTX_INJECTION64_PATH")) {
    OH_LOG(kInfo, "a tool for NVTX is attached, but this build of onehop has no ranges");
  }
  return nullptr;
}
uint64_t Nvtx::begin(const char*, uint64_t) const { return 0; }
void Nvtx::end(uint64_t) const {}
void Nvtx::mark(const char*) const {}

#endif

}  // namespace oh
