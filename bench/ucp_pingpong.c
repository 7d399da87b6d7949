/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick of tools/compare_hosts.py by UCX: active messages of UCP, eager or by rendezvous as
 * UCX chooses. Which transport is UCX_TLS's affair, as are all of its settings:
 *
 *   UCX_TLS=tcp UCX_NET_DEVICES=lo     ucp_pingpong latency --size 8
 *   UCX_TLS=posix,cma,self             ucp_pingpong bandwidth --size 4194304
 *
 * A message's header has its number, which tells its slot; what comes eagerly is copied there
 * within the handler, a rendezvous goes there by itself. All waiting polls ucp_worker_progress.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <ucp/api/ucp.h>

#include "pingpong.h"

enum { kMessage = 1, kAck = 2 };

const char kTool[] = "ucp";

static struct side* side;
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoint;
static size_t max_header;
static size_t header_size; /* of a message's header, with a payload in it */
static uint8_t* headers;   /* by slot: UCP may read them until a message is sent */
static uint64_t ack_header;
static ucs_status_ptr_t* requests; /* of sends, by slot; NULL: done */
static uint64_t* arrived;          /* by slot: 1 + the message that is there */
static uint64_t acked;
static int closing;

static void expect(ucs_status_t status, const char* what) {
  if (status != UCS_OK) fail("%s: %s", what, ucs_status_string(status));
}

static size_t slot_of(uint64_t i) { return i % side->spec.window; }

static void on_received(void* request, ucs_status_t status, size_t length, void* slot) {
  (void)length;
  expect(status, "ucp_am_recv_data_nbx");
  ucp_request_free(request);
  ++*(uint64_t*)slot; /* was the message's number */
}

static ucs_status_t on_message(void* unused, const void* head, size_t head_length, void* data,
                               size_t length, const ucp_am_recv_param_t* got) {
  uint64_t i;
  (void)unused;
  memcpy(&i, head, sizeof(i));
  uint8_t* to = side->in + slot_of(i) * side->spec.size;
  uint64_t* state = &arrived[slot_of(i)];
  if (side->spec.in_header) {
    data = (uint8_t*)head + side->spec.header;
    length = head_length - side->spec.header;
  }
  if (length != side->spec.size) {
    fail("message %llu has %zu bytes, not %llu", (unsigned long long)i, length,
         (unsigned long long)side->spec.size);
  }
  if (!(got->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    memcpy(to, data, length);
    *state = i + 1;
    return UCS_OK;
  }
  *state = i;
  ucp_request_param_t how = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
      .cb.recv_am = on_received,
      .user_data = state,
  };
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker, data, to, length, &how);
  if (UCS_PTR_IS_ERR(request)) expect(UCS_PTR_STATUS(request), "ucp_am_recv_data_nbx");
  if (request == NULL) *state = i + 1;
  return UCS_INPROGRESS; /* the descriptor is UCP's again */
}

static ucs_status_t on_ack(void* unused, const void* head, size_t head_length, void* data,
                           size_t length, const ucp_am_recv_param_t* got) {
  (void)unused, (void)head_length, (void)data, (void)length, (void)got;
  memcpy(&acked, head, sizeof(acked));
  return UCS_OK;
}

static void on_error(void* unused, ucp_ep_h ep, ucs_status_t status) {
  (void)unused, (void)ep;
  if (closing) return;
  fail("the endpoint failed: %s", ucs_status_string(status));
}

static void handle(unsigned id, ucp_am_recv_callback_t call, unsigned flags) {
  ucp_am_handler_param_t how = {
      .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
      .id = id,
      .cb = call,
      .flags = flags,
  };
  expect(ucp_worker_set_am_recv_handler(worker, &how), "ucp_worker_set_am_recv_handler");
}

static void open_worker(void) {
  ucp_params_t wanted = {
      .field_mask = UCP_PARAM_FIELD_FEATURES,
      .features = UCP_FEATURE_AM | (side->spec.wakeup ? UCP_FEATURE_WAKEUP : 0),
  };
  ucp_worker_params_t kind = {
      .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
      .thread_mode = (ucs_thread_mode_t)side->spec.threads,
  };
  ucp_worker_attr_t facts = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE |
                                           UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
  expect(ucp_init(&wanted, NULL, &context), "ucp_init");
  expect(ucp_worker_create(context, &kind, &worker), "ucp_worker_create");
  expect(ucp_worker_query(worker, &facts), "ucp_worker_query");
  if ((int)facts.thread_mode < side->spec.threads) fail("UCX is built without this thread mode");
  max_header = facts.max_am_header;
}

static void open_endpoint(void) {
  ucp_address_t* mine;
  uint64_t length;
  uint64_t other_length;
  size_t found;
  expect(ucp_worker_get_address(worker, &mine, &found), "ucp_worker_get_address");
  length = found;
  send_all(side->socket, &length, sizeof(length));
  send_all(side->socket, mine, length);
  receive_all(side->socket, &other_length, sizeof(other_length));
  void* other = malloc(other_length);
  receive_all(side->socket, other, other_length);
  ucp_ep_params_t how = {
      .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                    UCP_EP_PARAM_FIELD_ERR_HANDLER,
      .address = other,
      .err_mode = side->spec.peer_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE,
      .err_handler.cb = on_error,
  };
  expect(ucp_ep_create(worker, &how, &endpoint), "ucp_ep_create");
  free(other);
  ucp_worker_release_address(worker, mine);
}

void link_open(struct side* opened) {
  side = opened;
  const struct spec* spec = &side->spec;
  open_worker();
  header_size = spec->header + (spec->in_header ? spec->size : 0);
  if (spec->header < sizeof(uint64_t)) fail("--header is 8 or more: it has the message's number");
  if (header_size > max_header) fail("header: %zu bytes; UCX takes %zu", header_size, max_header);
  headers = calloc(spec->window, header_size);
  requests = calloc(spec->window, sizeof(*requests));
  arrived = calloc(spec->window, sizeof(*arrived));
  handle(kMessage, on_message, spec->persistent ? UCP_AM_FLAG_PERSISTENT_DATA : 0);
  handle(kAck, on_ack, 0);
  open_endpoint();
}

static ucs_status_ptr_t start(unsigned id, struct iovec head, struct iovec data) {
  static const ucp_request_param_t how = {0};
  ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint, id, head.iov_base, head.iov_len, data.iov_base, data.iov_len, &how);
  if (UCS_PTR_IS_ERR(request)) expect(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
  return request;
}

static ucs_status_t finish(ucs_status_ptr_t request) {
  ucs_status_t status;
  if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request);
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) link_progress();
  ucp_request_free(request);
  return status;
}

void link_send(uint64_t i) {
  size_t slot = slot_of(i);
  struct iovec head = {headers + slot * header_size, header_size};
  struct iovec data = {side->out + slot * side->spec.size, side->spec.size};
  memcpy(head.iov_base, &i, sizeof(i));
  if (side->spec.in_header) {
    memcpy((uint8_t*)head.iov_base + side->spec.header, data.iov_base, data.iov_len);
    data = (struct iovec){0};
  }
  requests[slot] = start(kMessage, head, data);
}

void link_sent(uint64_t i) { expect(finish(requests[slot_of(i)]), "a message's sending"); }

void link_receive(uint64_t i) {
  while (arrived[slot_of(i)] != i + 1) link_progress();
}

void link_ack(uint64_t count) {
  ack_header = count;
  struct iovec head = {&ack_header, sizeof(ack_header)};
  expect(finish(start(kAck, head, (struct iovec){0})), "an ack's sending");
}

void link_acked(uint64_t count) {
  while (acked < count) link_progress();
}

void link_progress(void) { ucp_worker_progress(worker); }

/* UCP 1.13 tells the transports in its print-out only: "lane[0]: 0:tcp/lo.0". */
static void transports(char* text, size_t room) {
  char* page = NULL;
  size_t length = 0;
  FILE* stream = open_memstream(&page, &length);
  ucp_ep_print_info(endpoint, stream);
  fclose(stream);
  size_t used = 0;
  for (char* at = page; (at = strstr(at, "lane[")) != NULL;) {
    char name[64];
    at += strlen("lane[");
    if (sscanf(at, "%*d]: %*d:%63s", name) != 1) continue;
    if (strstr(text, name) != NULL) continue;
    used += (size_t)snprintf(text + used, room - used, "%s%s", used > 0 ? " " : "", name);
    if (used >= room) break;
  }
  free(page);
}

void link_describe(char* text, size_t room) {
  char names[256] = "";
  transports(names, sizeof(names));
  snprintf(text, room, ",\"ucx\":\"%s\",\"transports\":\"%s\",\"max_am_header\":%zu",
           ucp_get_version_string(), names, max_header);
}

/* Flushes. Whichever side is the first resets the connection for the other one. */
void link_close(void) {
  static const ucp_request_param_t how = {0};
  closing = 1;
  finish(ucp_ep_close_nbx(endpoint, &how));
}
