// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of explained paths: the rows of oh_peer_get_path, and links with every kind
// of memory on each side.
#pragma once

#include <array>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "conformance/fake_driver.h"

namespace conformance {

constexpr size_t kLargest = 1 << 20;

// A link, and the memory kinds of its sides.
struct Explained {
  LinkKind link;
  std::array<std::vector<MemoryKind>, 2> memory;
};

inline void PrintTo(const Explained& explained, std::ostream* out) { *out << explained.link.name; }

// Returns the rows' name for memory of this kind, in an operation with memory of kind `other`.
inline std::string kind_in_rows(const LinkKind& link, MemoryKind kind, MemoryKind other) {
  switch (kind) {
    case MemoryKind::kPrivate:
      return "host";
    case MemoryKind::kPinned:
      return on_device(other) ? "pinned" : "host";
    case MemoryKind::kShared:
      return "shared";
    case MemoryKind::kAsync:
    case MemoryKind::kManaged:
      return "device-private";
    case MemoryKind::kVmm:
    case MemoryKind::kPool:
      // Other GPUs of the process can access only cudaMalloc memory.
      return link.processes || link.device[0] == link.device[1] ? "device" : "device-private";
    default:
      return "device";
  }
}

// Sizes [first, last] that one row covers.
struct Row {
  std::string operation;
  std::string source;
  std::string target;
  uint64_t first;
  uint64_t last;
  oh_path path;
  std::string method;
  std::string why;
};

// The operations that a side starts between its memory and the peer's.
struct Between {
  std::string source;
  std::string target;
};

class Rows {
 public:
  explicit Rows(const onehop::Peer& peer) {
    auto row = onehop::detail::sized<oh_path_row>();
    for (size_t i = 0; oh_peer_get_path(peer.get(), i, &row) == OH_OK; ++i) {
      rows_.push_back({row.operation, row.source, row.target, row.first, row.last, row.path,
                       row.method, row.why});
    }
  }

  std::vector<const Row*> of(const std::string& operation, const Between& between) const {
    std::vector<const Row*> found;
    for (const Row& row : rows_) {
      bool matches = row.operation == operation && row.source == between.source &&
                     row.target == between.target;
      if (matches) found.push_back(&row);
    }
    return found;
  }

  // The rows of an operation must cover each size exactly once.
  void expect_complete(const std::string& operation, const Between& between) const {
    uint64_t next = 0;
    std::vector<const Row*> rows = of(operation, between);
    ASSERT_FALSE(rows.empty()) << operation << " " << between.source << " to " << between.target;
    for (const Row* row : rows) {
      EXPECT_EQ(row->first, next) << row->why;
      next = row->last + 1;
    }
    EXPECT_EQ(rows.back()->last, UINT64_MAX);
  }

  // Returns the boundaries of all rows, and further sizes.
  std::vector<size_t> sizes(const std::string& operation, const Between& between) const {
    std::set<size_t> sizes = {0, 1, 1024, 65536 + 5, kLargest};
    for (const Row* row : of(operation, between)) {
      for (uint64_t size : {row->first, row->last}) {
        if (size <= kLargest) sizes.insert(size);
      }
    }
    return {sizes.begin(), sizes.end()};
  }

  // Returns the rows whose paths an operation may take. A row of the worker also allows the next
  // row, which applies while the worker is idle.
  std::vector<const Row*> allowed(const std::string& operation, const Between& between,
                                  uint64_t size) const {
    std::vector<const Row*> found;
    for (const Row* row : of(operation, between)) {
      bool sleeps = !found.empty() && found.back()->path == OH_PATH_WORKER;
      if ((row->first <= size && size <= row->last) || sleeps) found.push_back(row);
    }
    return found;
  }

 private:
  std::vector<Row> rows_;
};

inline ::testing::AssertionResult is_among(int64_t path, const std::vector<const Row*>& allowed) {
  std::string text;
  for (const Row* row : allowed) {
    if (path == row->path) return ::testing::AssertionSuccess();
    text += std::string(text.empty() ? "" : "; or ") + oh_path_name(row->path) + ": " + row->why;
  }
  return ::testing::AssertionFailure()
         << "took " << oh_path_name(static_cast<oh_path>(path)) << ", the row says " << text;
}

inline bool is_host(const std::string& kind) { return kind == "host" || kind == "shared"; }

inline Buffer make(const Side& side, MemoryKind kind, size_t size) {
  const LinkKind& link = side.kind();
  if (link.device[side.number()] >= 0) use_device(link.driver, link.device[side.number()]);
  return Buffer(size, kind);
}

// One buffer for each memory kind of a side.
class Memory {
 public:
  Memory(const Side& side, const Explained& explained) {
    for (MemoryKind kind : explained.memory[side.number()]) {
      buffers_.push_back(make(side, kind, kLargest));
    }
  }
  Buffer& operator[](size_t index) { return buffers_[index]; }

 private:
  std::vector<Buffer> buffers_;
};

// Calls `pass` for each pair of memory kinds, with each side in turn as the first, and passes the
// index of the side's own kind.
using Pass = std::function<void(bool first, size_t mine, const Between& between)>;
inline void with_each_pair(Side& side, const Explained& explained, const Pass& pass) {
  for (int number : {0, 1}) {
    const std::vector<MemoryKind>& sources = explained.memory[number];
    const std::vector<MemoryKind>& targets = explained.memory[1 - number];
    for (size_t i = 0; i < sources.size(); ++i) {
      for (size_t j = 0; j < targets.size(); ++j) {
        bool first = side.number() == number;
        SCOPED_TRACE(std::string(memory_name(sources[i])) + " of side " + std::to_string(number) +
                     " to " + memory_name(targets[j]));
        pass(first, first ? i : j,
             {kind_in_rows(explained.link, sources[i], targets[j]),
              kind_in_rows(explained.link, targets[j], sources[i])});
      }
    }
  }
}

inline std::string name_of_link(const ::testing::TestParamInfo<Explained>& test) {
  return test.param.link.name;
}

using Kinds = std::vector<MemoryKind>;

inline Explained over(LinkKind link, Kinds first, Kinds second) {
  return {std::move(link), {std::move(first), std::move(second)}};
}
inline Explained over(LinkKind link, const Kinds& both) {
  return over(std::move(link), both, both);
}

inline const Kinds kHostKinds = {MemoryKind::kPrivate, MemoryKind::kShared};

inline LinkKind with_little_credit(LinkKind link) {
  link.name += "_little_credit";
  link.env["ONEHOP_EAGER_CREDIT"] = "1024";
  link.env["ONEHOP_EAGER_MAX"] = "512";
  return link;
}

class ExplainedPaths : public ::testing::TestWithParam<Explained> {
 protected:
  static void run(const Role& role) { run_pair(GetParam().link, role, role); }
};

// Runs without credit, so that small messages travel as large ones.
class ExplainedWithoutCredit : public ExplainedPaths {};

}  // namespace conformance
