// SPDX-License-Identifier: Apache-2.0
//
// Setup: the cost of an endpoint, a link and its first bytes, in time and in memory.
#include <cstdio>

#include "clock.h"
#include "side.h"

namespace bench {
namespace {

constexpr size_t kFirstBytes = 8;

// A field of /proc/self/smaps_rollup in bytes; 0 if the file does not exist.
double smaps(const std::string& field) {
  std::FILE* file = std::fopen("/proc/self/smaps_rollup", "re");
  if (!file) return 0;
  double bytes = 0;
  char line[256];
  char name[sizeof(line)];
  double kib = 0;
  while (std::fgets(line, sizeof(line), file)) {
    if (std::sscanf(line, "%s %lf", name, &kib) == 2 && field == name) bytes = kib * 1024;
  }
  std::fclose(file);
  return bytes;
}

// The first round trip of a link, in memory of the row's kind.
class FirstBytes {
 public:
  FirstBytes(Side& side, const Spec& spec)
      : side_(side),
        out_(side.make_buffer(spec, kFirstBytes)),
        in_(side.make_buffer(spec, kFirstBytes)) {}

  void prepare(uint64_t iteration, bool corrupt = false) {
    fill(out_->data(), kFirstBytes, iteration);
    poison(in_->data(), kFirstBytes);
    out_->data()[0] ^= corrupt;
    out_->publish();
    in_->publish();
  }
  void exchange(onehop::Peer& peer) {
    if (side_.first()) {
      peer.send(out_->place(), kFirstBytes, kDataTag);
      path_ = peer.recv(in_->place(), kFirstBytes, kDataTag).path;
    } else {
      path_ = peer.recv(in_->place(), kFirstBytes, kDataTag).path;
      peer.send(in_->place(), kFirstBytes, kDataTag);
    }
  }
  // Returns the number of wrong bytes.
  uint64_t check(uint64_t iteration) {
    in_->fetch();
    return count_wrong(in_->data(), kFirstBytes, iteration);
  }
  const char* path() const { return oh_path_name(path_); }

 private:
  Side& side_;
  std::unique_ptr<Buffer> out_;
  std::unique_ptr<Buffer> in_;
  oh_path path_ = OH_PATH_NONE;
};

// Opens links of one endpoint in sequence. The first one creates what all share, such as the UCX
// worker, and is not counted.
void link_again(Side& side, const Spec& spec, FirstBytes& bytes, SetupOutcome* outcome) {
  onehop::Endpoint endpoint = side.make_endpoint();
  for (uint64_t i = 0; i <= spec.iterations; ++i) {
    bytes.prepare(i);
    auto start = Clock::now();
    onehop::Peer peer = endpoint.connect(side.other_address());
    bytes.exchange(peer);
    auto answered = Clock::now();
    outcome->further.wrong += bytes.check(i);
    outcome->further.path = outcome->first.path;
    if (i > 0) outcome->further.add(microseconds(start, answered), 2 * kFirstBytes);
  }
}

// Opens links that stay open, and measures their memory.
void keep_links(Side& side, const Spec& spec, FirstBytes& bytes, SetupOutcome* outcome) {
  onehop::Endpoint endpoint = side.make_endpoint();
  double rss = smaps("Rss:");
  double pss = smaps("Pss:");
  double free = side.has_device() ? static_cast<double>(side.device().free_memory()) : 0;
  std::vector<onehop::Peer> peers;
  for (uint64_t i = 0; i < spec.window; ++i) {
    bytes.prepare(i);
    peers.push_back(endpoint.connect(side.other_address()));
    bytes.exchange(peers.back());
    outcome->first.wrong += bytes.check(i);
  }
  auto count = static_cast<double>(spec.window);
  outcome->rss_per_peer = (smaps("Rss:") - rss) / count;
  outcome->pss_per_peer = (smaps("Pss:") - pss) / count;
  if (side.has_device()) {
    outcome->device_per_peer = (free - static_cast<double>(side.device().free_memory())) / count;
  }
  side.sync();
}

void ask(Side& side, const Spec& spec, FirstBytes& bytes, SetupOutcome* outcome) {
  for (uint64_t i = 0; i < spec.iterations; ++i) {
    bytes.prepare(i, spec.corrupt && i == 0);
    auto start = Clock::now();
    onehop::Endpoint endpoint = side.make_endpoint();
    auto created = Clock::now();
    onehop::Peer peer = endpoint.connect(side.other_address());
    auto connected = Clock::now();
    bytes.exchange(peer);
    auto answered = Clock::now();
    outcome->endpoint.add(microseconds(start, created), 0);
    outcome->connect.add(microseconds(created, connected), 0);
    outcome->first.add(microseconds(connected, answered), 2 * kFirstBytes);
    outcome->first.wrong += bytes.check(i);
    outcome->first.path = spec.stamped ? oh_path_name(peer.info().path) : bytes.path();
  }
  link_again(side, spec, bytes, outcome);
  keep_links(side, spec, bytes, outcome);
}

void answer(Side& side, const Spec& spec, FirstBytes& bytes, SetupOutcome* outcome) {
  std::vector<onehop::Peer> peers;
  auto one = [&](uint64_t iteration) {
    bytes.prepare(iteration);
    onehop::Peer peer = side.endpoint().accept();
    bytes.exchange(peer);
    outcome->first.wrong += bytes.check(iteration);
    return peer;
  };
  for (uint64_t i = 0; i < spec.iterations; ++i) one(i);
  for (uint64_t i = 0; i <= spec.iterations; ++i) one(i);
  for (uint64_t i = 0; i < spec.window; ++i) peers.push_back(one(i));
  side.sync();
}

}  // namespace

SetupOutcome setup(Side& side, const Spec& spec) {
  SetupOutcome outcome;
  FirstBytes bytes(side, spec);
  side.sync();
  if (side.first()) {
    ask(side, spec, bytes, &outcome);
  } else {
    answer(side, spec, bytes, &outcome);
  }
  side.sync();
  return outcome;
}

}  // namespace bench
