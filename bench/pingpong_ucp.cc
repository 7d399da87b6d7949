// SPDX-License-Identifier: Apache-2.0
//
// UCP active messages, eager or rendezvous as UCX chooses. UCX_TLS and UCX's other settings select
// the transport:
//
//   UCX_TLS=tcp UCX_NET_DEVICES=lo     ucp_pingpong latency --size 8
//   UCX_TLS=posix,cma,self             ucp_pingpong bandwidth --size 4194304
//
// A message's header holds its number, which determines its slot. The handler copies an eager
// message there; a rendezvous transfers it there directly. All waits poll ucp_worker_progress.
#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "pingpong.h"

namespace bench {
namespace {

enum : unsigned { kMessage = 1, kAck = 2 };

void expect(ucs_status_t status, const char* what) {
  if (status != UCS_OK) fail("%s: %s", what, ucs_status_string(status));
}

// Latency needs two slots: the next message may arrive before the previous one was checked.
Settings with_slots(Settings settings) {
  settings.spec.window = std::max<size_t>(settings.spec.window, 2);
  return settings;
}

class UcpWire : public AckedWire {
 public:
  UcpWire(SocketLink& link, const Settings& settings)
      : AckedWire(link, with_slots(settings)), spec_(settings_.spec) {
    open_worker();
    header_size_ = settings_.header + (settings_.in_header ? spec_.size : 0);
    if (settings_.header < sizeof(uint64_t)) {
      fail("--header is 8 or more: it has the message's number");
    }
    if (header_size_ > max_header_) {
      fail("header: %zu bytes; UCX takes %zu", header_size_, max_header_);
    }
    headers_.resize(spec_.window * header_size_);
    requests_.resize(spec_.window);
    arrived_.resize(spec_.window);
    handle(kMessage, on_message, settings_.persistent ? UCP_AM_FLAG_PERSISTENT_DATA : 0);
    handle(kAck, on_ack, 0);
    open_endpoint(link);
    link.progress = [this] { progress(); };
  }
  // Flushes. The first side to close resets the connection for the other one.
  ~UcpWire() override {
    static const ucp_request_param_t how = {};
    closing_ = true;
    finish(ucp_ep_close_nbx(endpoint_, &how));
  }

  void sent(uint64_t i) override { expect(finish(requests_[slot_of(i)]), "a message's sending"); }

  std::string facts() const {
    return ",\"ucx\":\"" + std::string(ucp_get_version_string()) + "\",\"transports\":\"" +
           transports() + "\",\"max_am_header\":" + std::to_string(max_header_);
  }

 protected:
  void start(uint64_t i) override {
    uint8_t* head = &headers_[slot_of(i) * header_size_];
    uint8_t* data = from_->place(i);
    size_t size = spec_.size;
    memcpy(head, &i, sizeof(i));
    if (settings_.in_header) {
      memcpy(head + settings_.header, data, std::exchange(size, 0));
    }
    requests_[slot_of(i)] = send_message(kMessage, {head, header_size_}, {data, size});
  }
  void await(uint64_t i) override {
    while (arrived_[slot_of(i)] != i + 1) progress();
    arrived_[slot_of(i)] = 0;
  }
  void ack(uint64_t count) override {
    acking_ = count;
    expect(finish(send_message(kAck, {&acking_, sizeof(acking_)}, {nullptr, 0})),
           "an ack's sending");
  }
  uint64_t next_ack() override {
    progress();
    return std::exchange(acked_, 0);
  }

 private:
  struct Part {
    void* at;
    size_t size;
  };

  static void on_received(void* request, ucs_status_t status, size_t, void* state) {
    expect(status, "ucp_am_recv_data_nbx");
    ucp_request_free(request);
    ++*static_cast<uint64_t*>(state);  // from the message's number to number + 1
  }
  static ucs_status_t on_message(void* self, const void* head, size_t head_length, void* data,
                                 size_t length, const ucp_am_recv_param_t* got) {
    return static_cast<UcpWire*>(self)->take_message(head, head_length, data, length, got);
  }
  static ucs_status_t on_ack(void* self, const void* head, size_t, void*, size_t,
                             const ucp_am_recv_param_t*) {
    memcpy(&static_cast<UcpWire*>(self)->acked_, head, sizeof(uint64_t));
    return UCS_OK;
  }
  static void on_error(void* self, ucp_ep_h, ucs_status_t status) {
    if (static_cast<UcpWire*>(self)->closing_) return;
    fail("the endpoint failed: %s", ucs_status_string(status));
  }

  ucs_status_t take_message(const void* head, size_t head_length, void* data, size_t length,
                            const ucp_am_recv_param_t* got) {
    uint64_t i;
    memcpy(&i, head, sizeof(i));
    uint8_t* to = to_->place(i);
    uint64_t* state = &arrived_[slot_of(i)];
    if (settings_.in_header) {
      data = const_cast<uint8_t*>(static_cast<const uint8_t*>(head)) + settings_.header;
      length = head_length - settings_.header;
    }
    if (length != spec_.size) {
      fail("message %llu has %zu bytes, not %zu", static_cast<unsigned long long>(i), length,
           spec_.size);
    }
    if (!(got->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
      memcpy(to, data, length);
      *state = i + 1;
      return UCS_OK;
    }
    *state = i;
    ucp_request_param_t how = {};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.cb.recv_am = on_received;
    how.user_data = state;
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, data, to, length, &how);
    if (UCS_PTR_IS_ERR(request)) expect(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
    if (request == nullptr) *state = i + 1;
    return UCS_INPROGRESS;  // UCP owns the descriptor again
  }

  void handle(unsigned id, ucp_am_recv_callback_t call, unsigned flags) {
    ucp_am_handler_param_t how = {};
    how.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    how.id = id;
    how.cb = call;
    how.arg = this;
    how.flags = flags;
    expect(ucp_worker_set_am_recv_handler(worker_, &how), "ucp_worker_set_am_recv_handler");
  }

  void open_worker() {
    ucp_params_t wanted = {};
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES;
    wanted.features = UCP_FEATURE_AM;
    if (settings_.wakeup) wanted.features |= UCP_FEATURE_WAKEUP;
    ucp_worker_params_t kind = {};
    kind.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    kind.thread_mode = static_cast<ucs_thread_mode_t>(settings_.threads);
    ucp_worker_attr_t facts = {};
    facts.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
    expect(ucp_init(&wanted, nullptr, &context_), "ucp_init");
    expect(ucp_worker_create(context_, &kind, &worker_), "ucp_worker_create");
    expect(ucp_worker_query(worker_, &facts), "ucp_worker_query");
    if (static_cast<int>(facts.thread_mode) < settings_.threads) {
      fail("UCX is built without this thread mode");
    }
    max_header_ = facts.max_am_header;
  }

  void open_endpoint(Link& link) {
    ucp_address_t* mine;
    size_t length;
    expect(ucp_worker_get_address(worker_, &mine, &length), "ucp_worker_get_address");
    const auto* at = reinterpret_cast<const uint8_t*>(mine);
    const Bytes other = link.swap({at, at + length});
    ucp_worker_release_address(worker_, mine);
    ucp_ep_params_t how = {};
    how.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                     UCP_EP_PARAM_FIELD_ERR_HANDLER;
    how.address = reinterpret_cast<const ucp_address_t*>(other.data());
    how.err_mode = settings_.peer_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    how.err_handler.cb = on_error;
    how.err_handler.arg = this;
    expect(ucp_ep_create(worker_, &how, &endpoint_), "ucp_ep_create");
  }

  ucs_status_ptr_t send_message(unsigned id, Part head, Part data) {
    static const ucp_request_param_t how = {};
    ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint_, id, head.at, head.size, data.at, data.size, &how);
    if (UCS_PTR_IS_ERR(request)) expect(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
    return request;
  }
  ucs_status_t finish(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request);
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) progress();
    ucp_request_free(request);
    return status;
  }
  void progress() { ucp_worker_progress(worker_); }
  size_t slot_of(uint64_t i) const { return i % spec_.window; }

  // UCP 1.13 reports the transports only in its printed text: "lane[0]: 0:tcp/lo.0".
  std::string transports() const {
    char* page = nullptr;
    size_t length = 0;
    FILE* stream = open_memstream(&page, &length);
    ucp_ep_print_info(endpoint_, stream);
    fclose(stream);
    std::string text;
    for (const char* at = page; (at = strstr(at, "lane[")) != nullptr;) {
      char name[64];
      at += strlen("lane[");
      if (sscanf(at, "%*d]: %*d:%63s", name) != 1) continue;
      if (text.find(name) == std::string::npos)
        text += (text.empty() ? "" : " ") + std::string(name);
    }
    free(page);
    return text;
  }

  const Spec& spec_;
  ucp_context_h context_;
  ucp_worker_h worker_;
  ucp_ep_h endpoint_;
  size_t max_header_ = 0;
  size_t header_size_ = 0;                  // of a message's header, including a payload in it
  std::vector<uint8_t> headers_;            // by slot: UCP may read them until the message is sent
  std::vector<ucs_status_ptr_t> requests_;  // of sends, by slot
  std::vector<uint64_t> arrived_;           // by slot: 1 + the number of the arrived message
  uint64_t acking_ = 0;
  uint64_t acked_ = 0;
  bool closing_ = false;
};

std::unique_ptr<Wire> open_ucp(SocketLink& link, const Settings& settings, std::string* facts) {
  auto wire = std::make_unique<UcpWire>(link, settings);
  *facts = wire->facts();
  return wire;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_pingpong("ucp", argc, argv, bench::open_ucp); }
