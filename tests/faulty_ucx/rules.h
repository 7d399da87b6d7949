// SPDX-License-Identifier: Apache-2.0
//
// Rules: which calls fail, and how.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/ucx/abi.h"

namespace oh::ucx::faulty {

enum class Symbol : int {
#define FAULTY_UCX_MEMBER(name, symbol, result, parameters) symbol,
  OH_UCX_FUNCTIONS(FAULTY_UCX_MEMBER)
#undef FAULTY_UCX_MEMBER
      kCount
};

enum class When { kNow, kLater, kNever, kLast };

struct Strike {
  Code code;
  When when;
};

class Rules {
 public:
  // The first call reads the rules of FAULTY_UCX.
  static Rules& instance();

  bool set(const std::string& text);
  // Counts the call. Returns the rule that it strikes, if any.
  std::optional<Strike> visit(Symbol where);
  uint64_t struck() const { return struck_.load(); }
  // Returns the calls of a function so far.
  std::optional<uint64_t> calls(const std::string& name) const;

 private:
  struct Rule {
    Symbol where;
    uint64_t left;  // calls until the rule strikes
    bool forever;
    Strike strike;
  };
  static std::optional<Rule> parse(const std::string& text);

  std::atomic<uint64_t> struck_{0};
  std::atomic<uint64_t> calls_[static_cast<int>(Symbol::kCount)] = {};
  std::mutex mutex_;
  std::vector<Rule> rules_;
};

}  // namespace oh::ucx::faulty
