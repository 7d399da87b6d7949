// SPDX-License-Identifier: Apache-2.0
//
// Messages over a TCP socket, without a library.
//
// No framing: both sides know the size, and a message of 0 bytes is one byte. Both sides poll a
// non-blocking socket, because waking a thread that sleeps in the kernel takes longer than a small
// message.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "pingpong.h"

namespace bench {
namespace {

class TcpWire : public AckedWire {
 public:
  TcpWire(SocketLink& link, const Settings& settings)
      : AckedWire(link, settings), socket_(link.socket()) {}

 protected:
  // The kernel holds a copy when it returns.
  void start(uint64_t i) override { message(true, from_->place(i)); }
  void await(uint64_t i) override { message(false, to_->place(i)); }
  void ack(uint64_t count) override { move(true, &count, sizeof(count)); }
  uint64_t next_ack() override {
    uint64_t count = 0;
    move(false, &count, sizeof(count));
    return count;
  }

 private:
  void message(bool sends, void* at) {
    uint8_t nothing = 0;
    const size_t size = settings_.spec.size;
    size == 0 ? move(sends, &nothing, 1) : move(sends, at, size);
  }
  void move(bool sends, void* data, size_t size) {
    auto* at = static_cast<uint8_t*>(data);
    while (size > 0) {
      ssize_t moved = sends ? ::send(socket_, at, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                            : ::recv(socket_, at, size, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (moved < 0) fail("%s of %zu bytes: %s", sends ? "send" : "recv", size, strerror(errno));
      if (moved == 0) fail("the other process closed the socket, %zu bytes early", size);
      at += moved;
      size -= static_cast<size_t>(moved);
    }
  }

  int socket_;
};

std::unique_ptr<Wire> open_tcp(SocketLink& link, const Settings& settings, std::string* facts) {
  if (settings.ucp_alone()) {
    fail("--in-header, --peer-errors, --wakeup, --persistent and --threads are UCX's");
  }
  *facts = ",\"waits\":\"polling\"";
  return std::make_unique<TcpWire>(link, settings);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::run_pingpong("tcp", argc, argv, bench::open_tcp); }
