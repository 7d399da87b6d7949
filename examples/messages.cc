// SPDX-License-Identifier: Apache-2.0
//
// Messages in C++: two processes exchange vectors, and one handles an error.
//
//   g++ -std=c++17 examples/messages.cc -I INCLUDE -L LIBRARY -lonehop -Wl,-rpath,LIBRARY -o
//   messages
//
// INCLUDE and LIBRARY of an installed package: python -c "import onehop;
// print(onehop.get_include(), onehop.get_library_dir())". Exits with 0 if all bytes were right.
// Shown in docs/guides/messages.md.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "onehop/onehop.hpp"

namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

// --8<-- [start:run]
int run(uint32_t rank, const onehop::Bytes& unique_id) {
  oh_comm_options options{};
  options.rank = rank;
  options.size = 2;
  options.unique_id = unique_id.data();
  options.unique_id_size = unique_id.size();
  onehop::Communicator comm(options);  // blocks until both ranks have joined
  onehop::Peer peer = comm.peer(1 - rank);

  std::vector<float> mine(1 << 20, static_cast<float>(rank));
  std::vector<float> theirs(mine.size());
  const size_t bytes = mine.size() * sizeof(float);
  onehop::Request receive = peer.irecv(theirs.data(), bytes, /*tag=*/7);
  onehop::Request send = peer.isend(mine.data(), bytes, /*tag=*/7);
  const onehop::Message message = receive.wait(minutes(1));
  send.wait(minutes(1));
  const bool right =
      theirs.front() == static_cast<float>(1 - rank) && theirs.back() == theirs.front();
  std::printf("rank %u: %zu bytes by %s, %s\n", rank, message.size, oh_path_name(message.path),
              right ? "right" : "WRONG");

  try {
    char nothing[8];
    peer.recv(nothing, sizeof(nothing), /*tag=*/99, milliseconds(100));
  } catch (const onehop::TimeoutError& error) {
    std::printf("rank %u: %s\n", rank, error.what());
  }
  comm.barrier(minutes(1));
  return right ? 0 : 1;
}
// --8<-- [end:run]

}  // namespace

int main() {
  int fds[2];
  if (pipe(fds) != 0) return 1;
  // Before any call of onehop: its objects do not survive a fork.
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    close(fds[1]);
    onehop::Bytes id(4096);
    size_t size = 0;
    for (ssize_t got = 0; (got = read(fds[0], id.data() + size, id.size() - size)) > 0;)
      size += got;
    id.resize(size);
    return run(1, id);
  }
  close(fds[0]);
  const onehop::Bytes id = onehop::unique_id();
  if (write(fds[1], id.data(), id.size()) != static_cast<ssize_t>(id.size())) return 1;
  close(fds[1]);
  const int result = run(0, id);
  int status = 0;
  waitpid(child, &status, 0);
  return result != 0 || status != 0;
}
