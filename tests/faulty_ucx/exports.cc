// SPDX-License-Identifier: Apache-2.0
//
// The entry points: each consults the rules and forwards to the real library unless a rule strikes.
// The specialisations of Call hold what individual calls need beyond that.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "control.h"
#include "opened.h"
#include "requests.h"

namespace oh::ucx::faulty {
namespace {

struct Table {
#define FAULTY_UCX_POINTER(name, symbol, result, parameters) result(*symbol) parameters;
  OH_UCX_FUNCTIONS(FAULTY_UCX_POINTER)
#undef FAULTY_UCX_POINTER
};

Table load() {
  const char* path = getenv("FAULTY_UCX_REAL");
  void* handle = dlopen(path ? path : "libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "libucp-faulty.so: no UCX behind it: %s\n", dlerror());
    abort();
  }
  Table table;
#define FAULTY_UCX_FIND(name, symbol, result, parameters) \
  table.symbol = reinterpret_cast<result(*) parameters>(dlsym(handle, #symbol));
  OH_UCX_FUNCTIONS(FAULTY_UCX_FIND)
#undef FAULTY_UCX_FIND
  return table;
}

const Table& real() {
  static const Table table = load();
  return table;
}

StatusPointer counted(StatusPointer pointer) {
  if (pointer && !is_error(pointer)) ++Opened::instance().requests;
  return pointer;
}

StatusPointer refused(const Owner& owner, const Strike& strike) {
  if (strike.when != When::kNow) return Requests::instance().add(owner, strike);
  return reinterpret_cast<void*>(intptr_t{strike.code});
}

// An active message handler that counts the data it keeps.
Code on_message(void* context, const void* header, size_t header_size, void* data, size_t size,
                const AmReceived* received) {
  const auto* handler = static_cast<const AmHandler*>(context);
  const Code code = handler->callback(handler->context, header, header_size, data, size, received);
  if (code == kInProgress) ++Opened::instance().data;
  return code;
}

// Forwards a call that no rule has struck; specialised by symbol.
template <Symbol kSymbol>
struct Call {
  template <typename Real, typename... Arguments>
  static auto pass(Real call, Arguments... arguments) {
    return call(arguments...);
  }
};

#define FAULTY_UCX_CALL(symbol) \
  template <>                   \
  struct Call<Symbol::symbol>

FAULTY_UCX_CALL(ucp_config_read){
    template <typename Real>
    static Code pass(Real call, const char* prefix, const char* file,
                     Config* config){const Code code = call(prefix, file, config);
if (code == kOk) ++Opened::instance().configs;
return code;
}  // namespace
};  // namespace oh::ucx::faulty

FAULTY_UCX_CALL(ucp_config_release){
    template <typename Real>
    static void pass(Real call, Config config){--Opened::instance().configs;
call(config);
}
}
;

FAULTY_UCX_CALL(ucp_worker_create){
    template <typename Real>
    static Code pass(Real call, Context context, const WorkerParams* params,
                     Worker* worker){const Code code = call(context, params, worker);
if (code == kOk) ++Opened::instance().workers;
return code;
}
}
;

FAULTY_UCX_CALL(ucp_worker_destroy){
    template <typename Real>
    static void pass(Real call, Worker worker){--Opened::instance().workers;
Requests::instance().cancel_last(worker);
call(worker);
}
}
;

FAULTY_UCX_CALL(ucp_worker_query){
    template <typename Real>
    static Code pass(Real call, Worker worker,
                     WorkerAttributes* attributes){const Code code = call(worker, attributes);
if (code == kOk && attributes->fields & WorkerAttributes::kAddress) {
  ++Opened::instance().addresses;
}
return code;
}
}
;

FAULTY_UCX_CALL(ucp_worker_release_address){
    template <typename Real>
    static void pass(Real call, Worker worker, Address address){--Opened::instance().addresses;
call(worker, address);
}
}
;

FAULTY_UCX_CALL(ucp_worker_set_am_recv_handler){
    template <typename Real>
    static Code pass(Real call, Worker worker, const AmHandler* handler){AmHandler ours = *handler;
ours.callback = on_message;
ours.context = new AmHandler(*handler);  // lives as long as UCX may call it
return call(worker, &ours);
}
}
;

FAULTY_UCX_CALL(ucp_worker_progress){
    template <typename Real>
    static unsigned pass(Real call, Worker worker){Requests::instance().end_due(worker);
if (std::optional<Opened::Link> link = Opened::instance().oldest(worker)) {
  if (std::optional<Strike> strike = Rules::instance().visit(Symbol::ucp_worker_progress)) {
    link->params.on_error(link->params.on_error_context, link->endpoint, strike->code);
  }
}
return call(worker);
}
}
;

FAULTY_UCX_CALL(ucp_ep_create){
    template <typename Real>
    static Code pass(Real call, Worker worker, const EndpointParams* params,
                     Endpoint* endpoint){const Code code = call(worker, params, endpoint);
if (code != kOk) return code;
Opened& opened = Opened::instance();
std::lock_guard lock(opened.mutex);
opened.links.push_back({worker, *endpoint, *params});
return code;
}
}
;

FAULTY_UCX_CALL(ucp_ep_flush_nbx){template <typename Real> static StatusPointer pass(
    Real call, Endpoint endpoint, const RequestParam* param){return counted(call(endpoint, param));
}
static StatusPointer fail(const Strike& strike, Endpoint endpoint, const RequestParam* param) {
  return refused({Opened::instance().worker_of(endpoint), endpoint, param}, strike);
}
}
;

FAULTY_UCX_CALL(ucp_ep_close_nbx){template <typename Real> static StatusPointer pass(
    Real call, Endpoint endpoint, const RequestParam* param){Opened& opened = Opened::instance();
const Worker worker = opened.worker_of(endpoint);
{
  std::lock_guard lock(opened.mutex);
  std::erase_if(opened.links, [&](const auto& link) { return link.endpoint == endpoint; });
}
StatusPointer pointer = counted(call(endpoint, param));
Requests::instance().cancel(worker, endpoint);
return pointer;
}
static StatusPointer fail(const Strike& strike, Endpoint endpoint, const RequestParam* param) {
  const Worker worker = Opened::instance().worker_of(endpoint);
  StatusPointer pointer = pass(real().ucp_ep_close_nbx, endpoint, param);
  if (pointer && !is_error(pointer)) {
    --Opened::instance().requests;
    real().ucp_request_free(pointer);
  }
  return refused({worker, endpoint, param}, strike);
}
}
;

FAULTY_UCX_CALL(ucp_am_send_nbx){
    template <typename Real, typename... Arguments>
    static StatusPointer pass(Real call, Arguments... arguments){return counted(call(arguments...));
}
static StatusPointer fail(const Strike& strike, Endpoint endpoint, unsigned, const void*, size_t,
                          const void*, size_t, const RequestParam* param) {
  return refused({Opened::instance().worker_of(endpoint), endpoint, param}, strike);
}
}
;

FAULTY_UCX_CALL(ucp_am_recv_data_nbx){template <typename Real, typename... Arguments>
                                      static StatusPointer pass(Real call, Arguments... arguments){
                                          StatusPointer pointer = counted(call(arguments...));
if (!is_error(pointer)) --Opened::instance().data;
return pointer;
}
// UCX also loses the data when the call fails at once.
static StatusPointer fail(const Strike& strike, Worker worker, void* data, void*, size_t,
                          const RequestParam* param) {
  --Opened::instance().data;
  if (strike.when == When::kLater) real().ucp_am_data_release(worker, data);
  return refused({worker, nullptr, param}, strike);
}
}
;

FAULTY_UCX_CALL(ucp_am_data_release){
    template <typename Real>
    static void pass(Real call, Worker worker, void* data){--Opened::instance().data;
call(worker, data);
}
}
;

FAULTY_UCX_CALL(ucp_request_check_status){template <typename Real>
                                          static Code pass(Real call, void* request){Code code;
return Requests::instance().check(request, &code) ? code : call(request);
}
}
;

FAULTY_UCX_CALL(ucp_request_free){
    template <typename Real>
    static void pass(Real call, void* request){if (Requests::instance().release(request)) return;
--Opened::instance().requests;
call(request);
}
}
;

#undef FAULTY_UCX_CALL

// Memory and keys. A release takes effect even if the call reports failure.
template <>
struct Call<Symbol::ucp_mem_map> {
  template <typename Real>
  static Code pass(Real call, Context context, const MapParams* params, Memory* memory) {
    const Code code = call(context, params, memory);
    if (code == kOk) ++Opened::instance().mapped;
    return code;
  }
};

template <>
struct Call<Symbol::ucp_mem_unmap> {
  template <typename Real>
  static Code pass(Real call, Context context, Memory memory) {
    --Opened::instance().mapped;
    return call(context, memory);
  }
  static Code fail(const Strike& strike, Context context, Memory memory) {
    (void)pass(real().ucp_mem_unmap, context, memory);
    return strike.code;
  }
};

template <>
struct Call<Symbol::ucp_rkey_pack> {
  template <typename Real>
  static Code pass(Real call, Context context, Memory memory, void** packed, size_t* size) {
    const Code code = call(context, memory, packed, size);
    if (code == kOk) ++Opened::instance().packed;
    return code;
  }
};

template <>
struct Call<Symbol::ucp_rkey_buffer_release> {
  template <typename Real>
  static void pass(Real call, void* packed) {
    --Opened::instance().packed;
    call(packed);
  }
};

template <>
struct Call<Symbol::ucp_ep_rkey_unpack> {
  template <typename Real>
  static Code pass(Real call, Endpoint endpoint, const void* packed, RemoteKey* key) {
    const Code code = call(endpoint, packed, key);
    if (code == kOk) ++Opened::instance().keys;
    return code;
  }
};

template <>
struct Call<Symbol::ucp_rkey_destroy> {
  template <typename Real>
  static void pass(Real call, RemoteKey key) {
    --Opened::instance().keys;
    call(key);
  }
};

// ucp_put_nbx and ucp_get_nbx.
struct RemoteAccess {
  template <typename Real, typename... Arguments>
  static StatusPointer pass(Real call, Arguments... arguments) {
    return counted(call(arguments...));
  }
  template <typename Local>
  static StatusPointer fail(const Strike& strike, Endpoint endpoint, Local, size_t, uint64_t,
                            RemoteKey, const RequestParam* param) {
    return refused({Opened::instance().worker_of(endpoint), endpoint, param}, strike);
  }
};
template <>
struct Call<Symbol::ucp_put_nbx> : RemoteAccess {};
template <>
struct Call<Symbol::ucp_get_nbx> : RemoteAccess {};

template <Symbol kSymbol, typename Signature>
struct Export;
template <Symbol kSymbol, typename Result, typename... Arguments>
struct Export<kSymbol, Result(Arguments...)> {
  template <auto kMember>
  static Result call(Arguments... arguments) {
    // ucp_worker_progress consults the rules itself.
    if constexpr (std::is_same_v<Result, Code> && kSymbol != Symbol::ucp_request_check_status) {
      if (std::optional<Strike> strike = Rules::instance().visit(kSymbol)) {
        if constexpr (kSymbol == Symbol::ucp_mem_unmap) {
          return Call<kSymbol>::fail(*strike, arguments...);
        } else {
          return strike->code;
        }
      }
    } else if constexpr (std::is_same_v<Result, StatusPointer>) {
      if (std::optional<Strike> strike = Rules::instance().visit(kSymbol)) {
        return Call<kSymbol>::fail(*strike, arguments...);
      }
    }
    return Call<kSymbol>::pass(real().*kMember, arguments...);
  }
};

}  // namespace
}  // namespace oh::ucx::faulty

// The list of symbols has no argument names, so no wrapper can be written out per symbol: each
// symbol resolves to an instance of the template.
#define FAULTY_UCX_EXPORT(name, symbol, result, parameters)                                     \
  extern "C" {                                                                                  \
  __attribute__((visibility("hidden"), used)) auto resolve_##symbol() -> result(*) parameters { \
    using namespace oh::ucx::faulty;                                                            \
    return &Export<Symbol::symbol, result parameters>::call<&Table::symbol>;                    \
  }                                                                                             \
  __attribute__((visibility("default"), ifunc("resolve_" #symbol))) result symbol parameters;   \
  }
namespace oh::ucx {
OH_UCX_FUNCTIONS(FAULTY_UCX_EXPORT)
}  // namespace oh::ucx

extern "C" __attribute__((visibility("default"))) void faulty_ucx_counts(FaultyUcxCounts* counts) {
  using oh::ucx::faulty::Opened;
  using oh::ucx::faulty::Requests;
  Opened& opened = Opened::instance();
  std::lock_guard lock(opened.mutex);
  *counts = {opened.configs.load(),
             opened.workers.load(),
             opened.addresses.load(),
             opened.links.size(),
             opened.requests.load() + Requests::instance().count(),
             opened.data.load(),
             opened.mapped.load(),
             opened.packed.load(),
             opened.keys.load()};
}
