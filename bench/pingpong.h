// SPDX-License-Identifier: Apache-2.0
//
// The message benchmarks of other libraries are separate programs: pingpong.cc has the options and
// processes, loops.h the timed loops, and each transport is one more file with a wire.
// tools/compare_host.py and tools/compare_hosts.py compile them together:
//
//   TOOL latency|bandwidth [OPTIONS]                      two processes of this host, by fork
//   TOOL --listen PORT                                    the other side of another host's; 0: any
//   TOOL latency|bandwidth [OPTIONS] --connect HOST:PORT  the side that measures
//
// A program prints one line of JSON, and exits with 1 if a byte was wrong.
//
// Threading: none.
#pragma once

#include <functional>

#include "wire.h"

namespace bench {

// Side 0 sends them to side 1, so they are given only once.
struct Settings {
  Spec spec;
  int cpus[2] = {-1, -1};  // -1: not pinned
  // Only for UCP.
  bool peer_errors = false;  // UCP_ERR_HANDLING_MODE_PEER
  bool wakeup = false;       // UCP_FEATURE_WAKEUP
  bool persistent = false;   // UCP_AM_FLAG_PERSISTENT_DATA
  bool in_header = false;    // the payload travels in the message's header
  int threads = 0;           // ucs_thread_mode_t
  uint64_t header = 16;      // bytes
  bool ucp_alone() const {
    return in_header || peer_errors || wakeup || persistent || threads != 0;
  }
};

// The link to the other side: a TCP connection with TCP_NODELAY.
class SocketLink : public Link {
 public:
  SocketLink(int number, int socket);
  int number() const override { return number_; }
  Bytes swap(const Bytes& bytes) override;
  int socket() const { return socket_; }
  void send_all(const void* data, size_t size) const;
  void receive_all(void* data, size_t size) const;
  // Called while this side waits: the other side may depend on the transport's progress here.
  std::function<void()> progress = [] {};

 private:
  int number_;
  int socket_;
};

// A wire without posted receives. The receiver acknowledges each half of a window, so that the
// other half is in flight meanwhile, and the sender reuses a slot when its previous message is
// acknowledged. Latency needs no acknowledgements: the answer implies them.
class AckedWire : public SlotWire {
 public:
  AckedWire(Link& link, const Settings& settings);
  void isend(uint64_t i) final;
  void received(uint64_t i) final;
  void confirm() final;

 protected:
  virtual void start(uint64_t i) = 0;    // sends message i from its slot
  virtual void await(uint64_t i) = 0;    // waits until message i is in its slot
  virtual void ack(uint64_t count) = 0;  // acknowledges messages 0 .. count - 1
  virtual uint64_t next_ack() = 0;       // the other side's acknowledgement, or 0 if there is none

  const Settings settings_;

 private:
  void await_ack(uint64_t count);

  uint64_t part_;  // messages per acknowledgement
  uint64_t next_ = 0;
  uint64_t acked_ = 0;
};

// Opens a transport between two sides; neither has sent anything. `facts`: additions to the line of
// JSON: `,"name":"value"`.
using Open = std::function<std::unique_ptr<Wire>(SocketLink&, const Settings&, std::string* facts)>;
// The main function of a transport without its own launcher.
int run_pingpong(const char* tool, int argc, char** argv, const Open& open);

// Its parts, for a transport with its own launcher. `port`: where to listen; `host`: where to
// connect to.
Settings read_settings(const char* tool, int argc, char** argv, std::string* port,
                       std::string* host);
std::unique_ptr<Buffer> slots_of(const Settings& settings);
// Measures, prints side 0's line, and returns the exit code.
int measure(Wire& wire, const Settings& settings, const std::string& facts);

// Prints what was tried and why it failed (printf format), and exits.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace bench
