// SPDX-License-Identifier: Apache-2.0
//
// A stranger's bytes and descriptors on a message socket, in pieces.
#include "platform/os/message_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "fuzz/fuzz.h"

namespace fuzz {

using namespace oh;

namespace {

constexpr size_t kMost = 2000;

Bytes message(uint8_t type, uint8_t fds, size_t size) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(static_cast<uint32_t>(2 + size));
  writer.u8(type);
  writer.u8(fds);
  writer.raw(Bytes(size, 7));
  return bytes;
}

void send_piece(int fd, ByteView bytes, size_t fds) {
  iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  if (fds > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds * sizeof(int));
    for (size_t i = 0; i < fds; ++i) {
      int number = STDERR_FILENO;
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &number, sizeof(number));
    }
  }
  [[maybe_unused]] ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint8_t fds : {0, 1, 8, 9}) {
    Bytes bytes = message(1, fds, 10);
    bytes.insert(bytes.begin(), static_cast<uint8_t>(bytes.size() << 4 | fds));
    bytes.insert(bytes.begin(), 0);
    all.push_back(bytes);
  }
  return all;
}

// Pieces: their size and descriptors in two bytes, then their bytes.
void check(ByteView input) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0) return;
  UniqueFd stranger(fds[0]);
  MessageSocket socket(UniqueFd(fds[1]), kMost);
  Input in(input);
  Status status;
  while (status.ok() && !in.empty()) {
    uint64_t head = in.number(2);
    ByteView bytes = in.bytes(head >> 4);
    if (!bytes.empty()) send_piece(stranger.get(), bytes, head & 15);
    while (true) {
      auto received = socket.receive();
      status = received.status();
      if (!status.ok() || !received->has_value()) break;
      require((*received)->payload.size() <= kMost, "a message has a bound");
      require((*received)->fds.size() <= MessageSocket::kMaxFds, "its descriptors, too");
    }
  }
  if (!status.ok()) {
    require(status.code() == OH_ERR_PROTOCOL || status.code() == OH_ERR_PEER_LOST,
            "it is the stranger's fault");
  }
}

}  // namespace fuzz
