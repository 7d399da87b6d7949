// SPDX-License-Identifier: Apache-2.0
#include "platform/os/numa.h"

#include <charconv>

#include "base/log.h"
#include "platform/os/os.h"

namespace oh {
namespace {

// The first line of a file; empty if it cannot be read.
std::string first_line(const std::string& path) {
  char text[4096];
  int64_t size = os().read_file(path.c_str(), text, sizeof(text));
  if (size <= 0) return {};
  std::string_view all(text, static_cast<size_t>(size));
  return std::string(all.substr(0, all.find('\n')));
}

// Removes the number at the start of the text and returns it; -1 if there is none.
int take_number(std::string_view* text) {
  int number = -1;
  auto [stop, fault] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (fault != std::errc() || number < 0) return -1;
  text->remove_prefix(static_cast<size_t>(stop - text->data()));
  return number;
}

bool take(std::string_view* text, char expected) {
  if (text->empty() || text->front() != expected) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

Result<CpuSet> CpuSet::parse(std::string_view text) {
  CpuSet set;
  std::string_view rest = text;
  while (!rest.empty()) {
    int first = take_number(&rest);
    int last = take(&rest, '-') ? take_number(&rest) : first;
    bool more = take(&rest, ',');
    if (first < 0 || last < first || last >= static_cast<int>(kMost) || more == rest.empty()) {
      return error(OH_ERR_INVALID, "'%.*s' is no list of CPUs below %u",
                   static_cast<int>(text.size()), text.data(), kMost);
    }
    for (int cpu = first; cpu <= last; ++cpu) set.add(static_cast<unsigned>(cpu));
  }
  return set;
}

CpuSet CpuSet::of_thread() {
  CpuSet set;
  if (os().sched_getaffinity(set.words_.data(), kMaskSize) < 0) return {};
  return set;
}

CpuSet CpuSet::operator&(const CpuSet& other) const {
  CpuSet both;
  for (size_t i = 0; i < words_.size(); ++i) both.words_[i] = words_[i] & other.words_[i];
  return both;
}

std::string CpuSet::text() const {
  std::string text;
  for (unsigned first = 0; first < kMost; ++first) {
    if (!has(first)) continue;
    unsigned last = first;
    while (last + 1 < kMost && has(last + 1)) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? strf("%u", first) : strf("%u-%u", first, last);
    first = last;
  }
  return text;
}

int numa_node_of_pci(const std::string& address) {
  std::string line = first_line("/sys/bus/pci/devices/" + address + "/numa_node");
  std::string_view rest = line;
  int node = take_number(&rest);
  return rest.empty() ? node : -1;
}

CpuSet cpus_of_node(int node) {
  Result<CpuSet> cpus =
      CpuSet::parse(first_line(strf("/sys/devices/system/node/node%d/cpulist", node)));
  return cpus.ok() ? *cpus : CpuSet();
}

std::vector<int> numa_nodes() {
  std::vector<int> nodes;
  // The same format as a list of CPUs.
  Result<CpuSet> online = CpuSet::parse(first_line("/sys/devices/system/node/online"));
  for (unsigned node = 0; online.ok() && node < CpuSet::kMost; ++node) {
    if (online->has(node)) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

void ThreadPlace::move_to(int node) {
  CpuSet now = CpuSet::of_thread();
  if (now != set_) own_ = now;
  CpuSet wanted = node < 0 ? own_ : own_ & cpus_of_node(node);
  if (wanted.empty()) {
    // The thread may currently be on the CPUs of another node.
    OH_LOG(kDebug, "a thread stays on its CPUs %s: none of them is of NUMA node %d",
           own_.text().c_str(), node);
    wanted = own_;
  }
  if (wanted == now) return;
  int result = os().sched_setaffinity(wanted.mask(), CpuSet::kMaskSize);
  if (result < 0) {
    OH_LOG(kDebug, "a thread stays where it is: sched_setaffinity(%s) failed with errno %d",
           wanted.text().c_str(), -result);
    return;
  }
  set_ = wanted;
}

void place_memory(void* memory, uint64_t size, int node) {
  if (node < 0) return;
  int result = os().mbind_preferred(memory, size, node);
  if (result < 0) {
    OH_LOG(kDebug, "%llu bytes come from any NUMA node: mbind to node %d failed with errno %d",
           static_cast<unsigned long long>(size), node, -result);
  }
}

}  // namespace oh
